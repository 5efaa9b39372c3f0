"""Garbage in every variable of the environment.

A training runs under PYTRACER=1 with one to all of pytracer's other variables set to values that
are wrong, extreme, of another option, not UTF-8, or very long. In some jobs PYTRACER itself has
such a value too.
"""

import random

from attack import Budget, Found
from jobs import User

from pytracer.tracing.options import OPTIONS, OTHER_VARIABLES, variable

PROMISE = (
    "The job runs to its end with status 0 and without a traceback, and writes at most one line "
    "for each variable."
)
DEVICE = "cpu"
SECONDS = 40

IN_NEW_PROCESS = 10  # one in so many jobs is a new process; the others are forked
VARIABLES = [*(variable(name) for name in OPTIONS), *OTHER_VARIABLES]
NUMBERS = ["-1", "0", "1", "2", "1024", "1e9", "99999999999999999999", "0x10", "1.5", "nan"]
TEXTS = [" ", "none", "None", "true", "no", "[]", "[1", "1,2,", ",", "{}", '{"a": NaN}']
TEXTS += ["[" * 10**4, "cuda:99", "cpu,cpu", "npu:-1", "state", "optimizer:No_Such", "framework"]
TEXTS += ["wait=1,active=0", "SIGKILL", "SIGUSR2", "USR2", "no_such_module:f", "os:no_such", ":"]
TEXTS += ["a:b:c", "%s%n{}", "\uff19"]
PLACES = ["/dev/null", "/dev/full", "/proc/1/x", "/dev/null/x.pickle", "x.pickle", "a/b/x.pickle"]
STRANGE = ["\udcff\udcfe", "a\nb", "\x1b[2J", "\u202e", "é", "x" * 10**5, "x" * 255 + ".pickle"]


def value(rng: random.Random) -> str:
    """Return a text that is rarely a valid value."""
    chosen = rng.choice(rng.choice((NUMBERS, TEXTS, PLACES, STRANGE)))
    if rng.random() < 0.3:  # "/" and "." would lead out of the scratch folder
        chosen = "".join(rng.choice("0123,:=[]{}\"' \t-+eE\u00ff\udc80") for _ in range(20))
    return chosen


def attack(budget: Budget) -> Found:
    rng, found = budget.rng, Found("jobs with garbage in variables")
    user = User(budget.folder / "user")
    user.get_hook()
    for number in found.turns(budget):
        chosen = rng.sample(VARIABLES, rng.choice((1, 2, 5, len(VARIABLES))))
        if rng.random() < 0.9 and "PYTRACER" in chosen:
            chosen.remove("PYTRACER")
        garbage = {name: value(rng) for name in chosen}
        ended = (user.run_new if number % IN_NEW_PROCESS == 1 else user.run)(**garbage)
        problems = ended.problems()
        if len(ended.lines) > len(garbage):
            problems.append(f"{len(ended.lines)} lines: {ended.output[-300:]!r}")
        shown = ", ".join(f"{name}={text!r:.40}" for name, text in garbage.items())
        found.fail(shown, problems)
        found.count("values of variables", len(garbage))
        found.count("jobs recorded all the same", ended.is_recorded)
    return found
