"""A module that workers import, and that may take long."""

from tests.cluster.slow_start import wait_here

wait_here()
