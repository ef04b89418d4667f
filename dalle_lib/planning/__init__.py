"""What a run will take before anybody is invited: seconds, traffic, money, memory. It loads no torch."""

from dalle_lib.planning.answers import reducers_enough, what_if
from dalle_lib.planning.machines import Machines
from dalle_lib.planning.plan import Plan, plan_run
from dalle_lib.planning.work import Work

__all__ = ["Machines", "Plan", "Work", "plan_run", "reducers_enough", "what_if"]
