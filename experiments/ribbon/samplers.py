"""Optuna's samplers in the place of a search, by Ribbon's objective: for comparison alone."""

from __future__ import annotations

import importlib.util
from typing import Any

from mainspring.experiments.ribbon.memo import Arena
from mainspring.planner.estimate import Estimate
from mainspring.planner.pools.objective import worth
from mainspring.planner.pools.search import Task
from mainspring.planner.pools.trials import Trials

MOST = 300
"""Suggestions after which one gives up; a pool that is suggested again is not evaluated again."""
SAMPLERS = {
    "optuna-tpe": ("TPESampler", "optuna"),
    "optuna-nsga2": ("NSGAIISampler", "optuna"),
    "optuna-cmaes": ("CmaEsSampler", "cmaes"),
}
"""A tree-structured Parzen estimator, a genetic algorithm and an evolution strategy: each one's class in
`optuna.samplers`, and the package that it needs."""


def sampled(arena: Arena, name: str, seed: int, most: int = MOST) -> list[Estimate] | None:
    """Return the pools that one of `SAMPLERS` tried until the cheapest that holds.

    None where Optuna, or what it needs for the sampler, is not installed.
    """
    sampler, package = SAMPLERS[name]
    if importlib.util.find_spec("optuna") is None or importlib.util.find_spec(package) is None:
        return None
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trials = Trials(arena.estimator, arena.problem.attainment)
    task = Task(arena.problem, arena.space, arena.possible, trials)
    made: Any = getattr(optuna.samplers, sampler)(seed=seed)
    study = optuna.create_study(direction="maximize", sampler=made)
    names = [f"kind{place}" for place in range(len(arena.problem.kinds))]
    for start in arena.starts(seed):
        study.enqueue_trial(dict(zip(names, start, strict=True)))
    for _ in range(most):
        trial = study.ask()
        pool = tuple(
            trial.suggest_int(name, kind.least, kind.most)
            for name, kind in zip(names, arena.problem.kinds, strict=True)
        )
        study.tell(trial, worth(task, trials.evaluate(pool)) if any(pool) else 0.0)
        if arena.best.pool in trials:
            break
    return trials.tried
