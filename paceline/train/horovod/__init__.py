"""Horovod: HorovodTrainer, for train functions that call `horovod.torch` or `horovod.tensorflow`."""

from importlib.util import find_spec

if find_spec("horovod") is None:
    raise ImportError(
        "paceline.train.horovod needs Horovod, which is compiled against the PyTorch and TensorFlow that it is used "
        "with. In the sources of paceline, `make horovod` does that (for an environment of your own: "
        "tools/horovod/install PYTHON); it takes a C++ compiler, cmake and make.",
        name="horovod",
    )

from paceline.train.horovod.backend import HorovodConfig
from paceline.train.horovod.trainer import HorovodTrainer

__all__ = ["HorovodConfig", "HorovodTrainer"]
