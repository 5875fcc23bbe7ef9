from __future__ import annotations

import lightning.pytorch  # noqa: F401  (sets variables when it is imported, which no test shall be blamed for)
import torch._dynamo  # noqa: F401  (as above)
