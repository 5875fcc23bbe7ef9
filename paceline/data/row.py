"""Old path of the class of rows, which are dicts."""

from paceline.air.absent import advise

advise(__name__, {"TableRow": "rows are dicts"})
