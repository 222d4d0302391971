"""The planner: which samples make which batch. `Plan.make` is the way in; plan.py states what a plan promises.

Pure, all of it.
"""

from loader_server.planning.epoch import EpochPlan, PlannedBatch
from loader_server.planning.plan import PLANNER_VERSION, OrdinalPlan, Plan
from loader_server.planning.settings import PlanSettings
from loader_server.planning.tally import LEFT_OUT, LengthTable

__all__ = [
    "LEFT_OUT",
    "PLANNER_VERSION",
    "EpochPlan",
    "LengthTable",
    "OrdinalPlan",
    "Plan",
    "PlanSettings",
    "PlannedBatch",
]
