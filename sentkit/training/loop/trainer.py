"""The training loop of all methods.

A state contains a position and tensors. The order of the rows, the random draws and the learning rate are
computed from the seed and the step number. A resumed run therefore ends with the same bytes as an
uninterrupted run.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sentkit.errors import DataError, UnavailableError, UsageError
from sentkit.model.encoding import Arrays
from sentkit.model.transformer.bert import attend_packed, stop_graphs
from sentkit.model.transformer.device import to_host
from sentkit.process import RESUME, Interrupted, Stopped
from sentkit.training.data.corpus import Batch, Order, stream
from sentkit.training.data.dev import Dev
from sentkit.training.loop.gradient import (
    Gradient,
    clip_gradient,
    random_state,
    set_random_state,
    tokens_that_fit,
)
from sentkit.training.loop.optimizers import make_optimizer, schedule_factor, warmup_steps
from sentkit.training.loop.processes import (
    MAX,
    SUM,
    RandomStates,
    environment,
    precision_name,
    precision_of,
)
from sentkit.training.loop.state import Keeper, Position, Run
from sentkit.training.method import Method, changing, checked_draws, restore, trained
from sentkit.training.settings import AUTO, Recipe, limits_of

NORM = "the gradient's norm"
BEHIND = 2  # steps that a GPU may have before the host reads their values
UNLIMITED = 1 << 31  # tokens of a chunk
EVALUATIONS, RAREST = 10, 1000  # of eval_every=none: evaluations in a run, and most steps between two
LOWER_RATE = "use a lower --lr; because this is a different run, add -f and remove --resume"


@dataclass(frozen=True, slots=True)
class Unread:
    """A step with values that the host has not read, and what is needed to return to its beginning."""

    number: int  # from 0
    names: tuple[str, ...]  # of its values
    wait: Callable[[], Arrays]  # returns the values, and 1 if this step or one before is broken
    record: dict[str, Any]  # of the log, without the values
    began: float
    rewind: Callable[[], None]  # restores the random state
    counts: Mapping[Tensor, int]  # steps of each parameter before this one


class Trainer:
    def __init__(self, run: Run, method: Method, keeper: Keeper) -> None:
        self.run, self.method, self.keeper = run, method, keeper
        self.processes, self.stop, self.reporter = run.processes, run.stop, run.reporter
        self.position, self.saved_at = Position(), time.monotonic()
        recipe, device, rows = self.recipe, self.processes.device, len(run.corpus)
        method.prepare(run.corpus)
        least = 1 if method.needs.row_wise else 2
        self.order = Order(rows, recipe.batch, recipe.epochs, run.seed, least, recipe.steps)
        if device.type == "cuda" and precision_name(recipe.precision, device) == "bf16":
            attend_packed(method, device)
        precision = precision_of(recipe.precision, device)
        self.gradient = Gradient(method, self.processes, recipe.chunk, precision)
        self.optimizer = make_optimizer(recipe, method.groups())
        self.position.limits = limits_of(recipe.chunk_tokens)
        self.rates = [group["lr"] for group in self.optimizer.param_groups]  # the highest ones
        # A step that is not applied must not change a method after it either, so its values are read before.
        waits = type(method).after_step is not Method.after_step
        self.behind = BEHIND if device.type == "cuda" and not waits else 0
        self.unread = deque[Unread]()
        self.read_at = 0.0  # when the values of the last step were read
        self.broken = torch.zeros((), device=device)  # 1 after a step with a value that is not finite

    @property
    def recipe(self) -> Recipe:
        return self.run.settings

    def train(self) -> None:
        """Run all remaining steps and leave the final weights in the method."""
        if not any(self.factor(step) for step in range(self.order.steps)):
            raise UsageError(
                f"the learning rate is 0 in all {self.order.steps} steps, because all are warm-up steps",
                advice="use a smaller --batch, more --epochs or --set warmup=0",
            )
        self.method.train()
        while not self._finished():
            self._step()
        self._read()
        self._refuse_broken()
        if self.recipe.final == "best" and self.position.best_step >= 0:
            restore(self.method, self.keeper.load_best(self.position.best_step))

    def _finished(self) -> bool:
        """Evaluate, save or stop if due. Return true when the run is finished."""
        if self.position.evaluated < self.position.step and self.evaluates(self.position.step):
            self._read()
            self._evaluate()
        step, run = self.position.step, self.run
        due = time.monotonic() - self.saved_at >= run.save_seconds
        due = step > 0 and (due or bool(run.save_every and step % run.save_every == 0))
        stop, save = self.processes.any([self.stop.requested, due])
        if stop or save:
            self._read()
            self._refuse_broken()
            self.save()
        if stop:
            where = f"step {self.position.step} of {self.order.steps}"
            raise Stopped(f"stopped and saved at {where}", advice=RESUME)
        exhausted = bool(self.recipe.patience) and self.position.waited >= self.recipe.patience
        return exhausted or self.position.step >= self.order.steps

    # One step.

    def _step(self) -> None:
        """Take one step. On a GPU, the host does not wait for it, and reads its values some steps later."""
        began, step = time.monotonic(), self.position.step
        batch, factor = self.batch(step), self.factor(step)
        rewind = random_state(self.processes.device)
        terms = self._gradient(batch, rewind)
        terms[NORM] = clip_gradient(self.gradient.parameters, self.recipe.clip)
        values = torch.stack([value.double() for value in terms.values()])
        broken = self.processes.reduced((~values.isfinite().all()).to(self.broken), MAX)
        self.broken = torch.maximum(self.broken, broken)  # no step after a broken one is applied
        record = {
            "step": step + 1,
            "of": self.order.steps,
            "epoch": round((step + 1) / self.order.epoch_steps, 4),
            "loss": None,
            "terms": None,
            "lr": list(dict.fromkeys(rate * factor for rate in self.rates)),
            "norm": None,
            "tokens": batch.tokens,
        }
        wait = to_host([values, self.broken])
        counts = {each: state["step"] for each, state in self.optimizer.state.items()}
        self.unread.append(Unread(step, tuple(terms), wait, record, began, rewind, counts))
        if not self.behind:
            self._check(self.unread[0])
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step(self.broken if self.behind else None)
        self.method.after_step(self.gradient.outputs)
        self.position.step += 1
        self._read(self.behind)

    def _gradient(self, batch: Batch, rewind: Callable[[], None]) -> dict[str, Tensor]:
        """Compute the gradient in chunks that fit into the memory of the device."""
        limits, step = self.position.limits, self.position.step
        deterministic = self.run.deterministic
        auto = self.recipe.chunk_tokens == AUTO
        fixed = not auto or deterministic or self.processes.world > 1
        if auto and not limits and self.processes.device.type == "cuda":
            fit = tokens_that_fit(self.gradient, batch, of_whole_memory=deterministic)
            limits.append([0, -int(self.processes.on_host([-float(fit)], MAX)[0])])  # the smallest
            self.reporter.note(f"chunks of {limits[0][1]} tokens")
        while True:
            self.gradient.tokens = next((most for first, most in reversed(limits) if first <= step), 0)
            try:
                return self.gradient.compute(batch)
            except torch.cuda.OutOfMemoryError as error:
                limit, freed = self.gradient.tokens, stop_graphs(self.method)
                if not freed and (fixed or len(self.gradient.parts(batch)) == len(batch)):
                    problem = f"step {step + 1} does not fit into the memory of the device"
                    smaller = f"use a smaller chunk_tokens than {limit}, or a smaller max_length"
                    advice = smaller if limit else "use --set chunk_tokens=auto"
                    raise UnavailableError(problem, advice=advice) from error
            # The error refers to tensors of the failed pass, so free their memory after its handler.
            torch.cuda.empty_cache()
            rewind()
            if freed:
                continue
            fewer = max(1, min(limit or batch.tokens, batch.tokens) // 2)
            limits[:] = [*(each for each in limits or [[0, UNLIMITED]] if each[0] < step), [step, fewer]]
            short = f"the memory of the device is short in step {step + 1}"
            self.reporter.warn(f"{short}: chunks have {fewer} tokens from now on")

    def _read(self, left: int = 0) -> None:
        """Check and report the steps with unread values, except the last `left`."""
        while len(self.unread) > left:
            step, [*terms, norm] = self.unread[0], self._check(self.unread[0])
            self.unread.popleft()
            began, self.read_at = max(step.began, self.read_at), time.monotonic()
            seconds = max(self.read_at - began, 1e-9)
            named = dict(zip(step.names, terms, strict=False))
            record = {**step.record, "loss": sum(terms), "terms": named, "norm": norm}
            self._report(record, tokens_per_s=round(record["tokens"] / seconds))

    def _check(self, step: Unread) -> list[float]:
        """Return the terms of the loss and the norm of the gradient. Raise a DataError if one is not finite.

        The state before this step is then saved: neither this step nor one after it was applied.
        """
        values, is_broken = step.wait()
        if is_broken:
            self.unread.clear()
            step.rewind()
            moments = self.optimizer.state
            self.optimizer.state = {each: {**moments[each], "step": n} for each, n in step.counts.items()}
            self.position.step = step.number
            if self.recipe.chunk_tokens == AUTO:
                self.position.limits = [each for each in self.position.limits if each[0] <= step.number]
            self._refuse_broken()
            if step.number:
                self.save()
            named = zip(step.names, values.tolist(), strict=True)
            broken = [f"{name} is {value}" for name, value in named if not math.isfinite(value)]
            what = ", ".join(broken) or "a term of the loss is not finite"
            problem = f"{what} at step {step.number + 1}: the run cannot continue"
            raise DataError(problem, source="training", advice=LOWER_RATE)
        return values.tolist()

    def _refuse_broken(self) -> None:
        """Raise a DataError if weights contain NaN or infinity. They must not be saved."""
        for name, parameter in trained(self.method):
            if not torch.isfinite(parameter).all():
                problem = f"{name} contains NaN or infinity after step {self.position.step}"
                raise DataError(problem, source="training", advice=LOWER_RATE)

    def batch(self, step: int) -> Batch:
        batch = self.run.corpus.batch(self.order.at(step))
        draws = self.method.draw(batch, partial(stream, self.run.seed, step))
        return replace(batch, draws=checked_draws(self.method, draws, len(batch)))

    def factor(self, step: int) -> float:
        steps = self.order.steps
        warmup = warmup_steps(self.recipe.warmup, steps)
        return schedule_factor(self.recipe.schedule, step, steps, warmup)

    def _report(self, record: dict[str, Any], **shown: float | None) -> None:
        """Write a record to the log; the reporter also gets `shown`."""
        if self.processes.first:
            self.keeper.write(record)
            seed = {"seed": self.run.seed} if self.run.several else {}
            self.reporter.step({**seed, **record, **shown})

    # Evaluation.

    def evaluates(self, step: int) -> bool:
        """Return true if --dev is scored after this step."""
        every, steps = self.recipe.eval_every, self.order.steps
        if self.run.dev is None:
            return False
        if every is None:
            every = 0 if self.recipe.patience else min(math.ceil(steps / EVALUATIONS), RAREST)
        ends = step % self.order.epoch_steps == 0 or step == steps
        return ends or bool(every and step % every == 0)

    def _evaluate(self) -> None:
        """Evaluate on the first process. A stop cancels the evaluation, and the resumed run repeats it."""
        score, interrupted = 0.0, False
        if self.processes.first and self.run.dev is not None:
            try:
                score = self._score(self.run.dev)
            except Interrupted:
                interrupted = True
        interrupted, missing = self.processes.any([interrupted, math.isnan(score)])
        [score] = self.processes.on_host([0.0 if math.isnan(score) else score], SUM)
        if interrupted:
            self.stop.requested = True
            return
        score = math.nan if missing else score
        best = self.position.add_score(score, cumulative=self.recipe.early_stop == "cumulative")
        if best:
            self._refuse_broken()
        if best and self.processes.first:
            self.keeper.save_best(self.position.step, changing(self.method))
        self.position.evaluated = self.position.step
        record = {"step": self.position.step, "dev": None if missing else score, "best": best}
        self._report(record, before=self.position.first_score)

    def _score(self, dev: Dev) -> float:
        declared = self.run.base.declared
        if self.position.step == 0 and declared is not None and not self.run.kind.needs.labels:
            return dev.score_base(declared, self.method, self.stop.poll)
        return dev.score(self.method, self.stop.poll)

    # Saving.

    def save(self, random_states: RandomStates | None = None) -> None:
        """Write the state on the first process.

        All processes must call this without `random_states`, because each has its own generators.
        """
        random_states = random_states or self.processes.random_states()
        if self.processes.first:
            self.position.log_bytes = self.keeper.log_length()
            content = {
                "method": changing(self.method),
                "optimizer": self.optimizer.state_dict(),
                "random_states": random_states[0],
                "device_random_states": random_states[1],
            }
            here = environment(self.processes, self.recipe.precision)
            identity = {"run": self.run.identity, "environment": here}
            self.keeper.save(self.position, content, identity, self.run.recorded)
        self.saved_at = time.monotonic()

    def resume_from(self, state: Mapping[str, Any]) -> None:
        """Continue from a checked state of `save`."""
        self.position = state["position"]
        restore(self.method, state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        rank, device = self.processes.rank, self.processes.device
        on_host, on_device = state["random_states"], state["device_random_states"]
        if rank < len(on_host):
            kept = device.type == "cuda" and rank < len(on_device)
            set_random_state(device, on_host[rank], on_device[rank] if kept else None)
