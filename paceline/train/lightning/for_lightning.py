"""Our classes that are derived from those of `lightning.pytorch`."""

from typing import Any

from paceline.train.lightning.callback import derive
from paceline.train.lightning.packages import LIGHTNING

_classes = derive(LIGHTNING, __name__)

DDPStrategy: Any = _classes["DDPStrategy"]
FSDPStrategy: Any = _classes["FSDPStrategy"]
DeepSpeedStrategy: Any = _classes["DeepSpeedStrategy"]
ModelParallelStrategy: Any = _classes["ModelParallelStrategy"]
LightningEnvironment: Any = _classes["LightningEnvironment"]
ReportCallback: Any = _classes["ReportCallback"]
ReportAtEpochEnd: Any = _classes["ReportAtEpochEnd"]
ReportingModelCheckpoint: Any = _classes["ReportingModelCheckpoint"]
