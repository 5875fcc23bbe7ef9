"""`ray.util.debug`: the part that is in use outside of Ray."""

from paceline.ray.util import log_once as log_once
