"""Any grid of tasks, networks, methods and seeds, resumable; knows nothing of the paper."""

from demur.study.grid import Setting as Setting
from demur.study.grid import Study as Study
from demur.study.grid import study as study
