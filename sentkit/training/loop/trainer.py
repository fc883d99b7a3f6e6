"""The training loop of all methods.

A state contains a position and tensors. The order of the rows, the random draws and the learning
rate are computed from the seed and the step number. A resumed run therefore ends with the same
bytes as an uninterrupted run.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from sentkit.errors import DivergedError, UnavailableError, UsageError
from sentkit.model.groups import Arrays
from sentkit.model.transformer.bert import attend_packed, stop_graphs
from sentkit.model.transformer.device import to_host
from sentkit.process import RESUME, Interrupted, Stopped
from sentkit.training.data.corpus import Batch, Corpus, Order, stream
from sentkit.training.data.dev import Dev, EvaluationRows
from sentkit.training.loop.gradient import (
    Gradient,
    clip_gradient,
    restorer_of_random_state,
    set_random_state,
    tokens_that_fit,
)
from sentkit.training.loop.optimizers import (
    make_optimizer,
    parameters_of_norms,
    schedule_factor,
    warmup_steps,
)
from sentkit.training.loop.processes import (
    MAX,
    SUM,
    RandomStates,
    environment,
    precision_name,
    precision_of,
)
from sentkit.training.loop.state import Checkpointer, Position
from sentkit.training.method import (
    Method,
    changing_tensors,
    checked_draws,
    restore,
    trained_parameters,
)
from sentkit.training.recipe import AUTO, Recipe, limits_of
from sentkit.training.run import Run

NORM = "the gradient's norm"
MAX_UNREAD = 2  # steps that a GPU may have before the host reads their values
UNLIMITED = 1 << 31  # tokens of a chunk
EVALUATIONS = 10  # in a run with eval_every=none
MAX_INTERVAL = 1000  # steps between two of them
OF_FIRST_STEP = "--lr had no effect yet: check the rows, the base and settings such as temperature"


@dataclass(frozen=True)
class UnreadStep:
    """A step with values that the host has not read, and what is needed to return to its
    beginning.
    """

    index: int  # from 0
    term_names: tuple[str, ...]
    wait: Callable[[], Arrays]  # waits for the device, and returns `values_on_host`
    record: dict[str, Any]  # of the log, without the values
    start_time: float
    restore_random: Callable[[], None]
    step_counts: Mapping[Tensor, int]  # steps of each parameter before this one

    @cached_property
    def values_on_host(self) -> Arrays:
        """The terms and the norm of the gradient, and 1 if this step or one before is not
        finite.
        """
        return self.wait()


def order_of(run: Run, corpus: Corpus) -> Order:
    """Return the order of the rows of a run."""
    recipe = run.settings
    return Order(
        rows=len(corpus),
        batch=recipe.batch,
        epochs=recipe.epochs,
        seed=run.seed,
        smallest_batch=1 if run.method_class.needs.row_wise else 2,
        max_steps=recipe.steps,
        batches=recipe.batches,
        files=corpus.files,
    )


def factor_of(recipe: Recipe, step: int, steps: int) -> float:
    """Return the factor of the learning rates in a step of a run."""
    return schedule_factor(recipe.schedule, step, steps, warmup_steps(recipe.warmup, steps))


def check_rates(run: Run, corpus: Corpus) -> None:
    """Refuse a run that trains nothing, because all its steps are warm-up steps."""
    order = order_of(run, corpus)
    count = order.steps
    if any(factor_of(run.settings, step, count) for step in range(count)):
        return
    steps = f"in all {count} steps, because all are warm-up steps"
    if count == 1:
        steps = "in the only step, which is a warm-up step"
    raise UsageError(f"the learning rate is 0 {steps}", advice=advice_on_rates(order))


def advice_on_rates(order: Order) -> str:
    """Return the advice for a run that has only warm-up steps."""
    without_warmup = "--set warmup=0"
    if order.max_steps == order.steps:
        if order.epochs is None or order.epochs * order.epoch_steps > order.steps:
            return f"use more steps or {without_warmup}"
        return f"use {without_warmup}"
    if order.rows < 2 * order.smallest_batch:
        return f"use more --epochs or {without_warmup}"
    return f"use a smaller --batch, more --epochs or {without_warmup}"


class Trainer:
    def __init__(self, run: Run, method: Method, checkpointer: Checkpointer) -> None:
        """`method` is prepared for the rows of the run (`Method.prepare`)."""
        self.run = run
        self.method = method
        self.checkpointer = checkpointer
        self.processes = run.processes
        self.stop = run.stop
        self.reporter = run.reporter
        recipe = self.recipe
        device = self.processes.device
        if device.type == "cuda" and precision_name(recipe.precision, device) == "bf16":
            attend_packed(method, device)

        # Rows, gradient and optimizer.
        self.order = order_of(run, run.corpus)
        precision = precision_of(recipe.precision, device)
        self.gradient = Gradient(method, self.processes, recipe.chunk, precision)
        self.optimizer = make_optimizer(recipe, method.groups(), parameters_of_norms(method))
        self.highest_rates = [group["lr"] for group in self.optimizer.param_groups]

        # Progress.
        self.position = Position(limits=limits_of(recipe.chunk_tokens))
        self.last_save = time.monotonic()

        # Steps that the host has not read. A step that is not applied must not change a method
        # after it either, so with `after_step` the values of a step are read before the step is
        # applied.
        self.unread = deque[UnreadStep]()
        self.max_unread = 0
        if device.type == "cuda" and type(method).after_step is Method.after_step:
            self.max_unread = MAX_UNREAD
        self.last_read = 0.0  # when the values of the last step were read
        # 1 from the first step on that has a value that is not finite
        self.has_diverged = torch.zeros((), device=device)

    @property
    def recipe(self) -> Recipe:
        return self.run.settings

    def train(self) -> None:
        """Run all remaining steps and leave the final weights in the method."""
        self.method.train()
        while not self._finished():
            self._step()
        self._read_steps()
        self._check_weights()
        if self.recipe.final == "best" and self.position.best_step >= 0:
            restore(self.method, self.checkpointer.load_best(self.position.best_step))

    def _finished(self) -> bool:
        """Evaluate, save or stop if due. Return true when the run is finished."""
        step = self.position.step
        if self.position.evaluated < step and self.evaluates(step):
            self._read_steps()
            self._evaluate()
        stop, save = self.processes.any([self.stop.requested, self._save_is_due(step)])
        if stop or save:
            self._read_steps()
            self._check_weights()
            self.save()
        if stop:
            problem = f"stopped and saved at step {step} of {self.order.steps}"
            raise Stopped(problem, advice=RESUME)
        if self.recipe.patience and self.position.waited >= self.recipe.patience:
            return True
        return step >= self.order.steps

    def _save_is_due(self, step: int) -> bool:
        if step == 0:
            return False
        if time.monotonic() - self.last_save >= self.run.save_seconds:
            return True
        return self.run.save_every > 0 and step % self.run.save_every == 0

    # One step.

    def _step(self) -> None:
        """Take one step. On a GPU, the host does not wait for it, and reads its values some steps
        later.
        """
        start_time = time.monotonic()
        step = self.position.step
        batch = self.batch(step)
        factor = self.factor(step)

        # The terms of the loss, the gradient and its norm.
        restore_random = restorer_of_random_state(self.processes.device)
        terms = self._gradient(batch, restore_random)
        norm = clip_gradient(self.gradient.parameters, self.recipe.clip)
        values = torch.stack([value.double() for value in [*terms.values(), norm]])
        has_bad_value = (~values.isfinite().all()).to(self.has_diverged)
        has_bad_value = self.processes.reduced(has_bad_value, MAX)
        self.has_diverged = torch.maximum(self.has_diverged, has_bad_value)

        # Start to copy the values to the host. `_read_steps` adds those that are None to the
        # record, whose order is that of the log.
        record = {
            "step": step + 1,
            "of": self.order.steps,
            "epoch": round((step + 1) / self.order.epoch_steps, 4),
            "loss": None,
            "terms": None,
            "lr": list(dict.fromkeys(rate * factor for rate in self.highest_rates)),
            "norm": None,
            "tokens": batch.tokens,
        }
        self.unread.append(
            UnreadStep(
                index=step,
                term_names=tuple(terms),
                wait=to_host([values, self.has_diverged]),
                record=record,
                start_time=start_time,
                restore_random=restore_random,
                step_counts={
                    parameter: state["step"] for parameter, state in self.optimizer.state.items()
                },
            )
        )

        # Apply the step. With unread steps, the optimizer applies it only if all values are finite.
        skip_flag: Tensor | None = self.has_diverged
        if self.max_unread == 0:
            self._check_finite(self.unread[0])
            skip_flag = None
        for group, rate in zip(self.optimizer.param_groups, self.highest_rates, strict=True):
            group["lr"] = rate * factor
        self.optimizer.step(skip_flag)
        self.method.after_step(self.gradient.outputs)
        self.position.step += 1
        self._read_steps(self.max_unread)

    def _gradient(self, batch: Batch, restore_random: Callable[[], None]) -> dict[str, Tensor]:
        """Compute the gradient in chunks that fit into the memory of the device."""
        limits = self.position.limits  # [step, tokens of a chunk from this step on]
        step = self.position.step
        is_auto = self.recipe.chunk_tokens == AUTO
        if is_auto and not limits and self.processes.device.type == "cuda":
            fit = tokens_that_fit(self.gradient, batch, of_whole_memory=self.run.deterministic)
            # of the process with the smallest limit
            [negative] = self.processes.on_host([-float(fit)], MAX)
            limits.append([0, -int(negative)])
            self.reporter.note(f"chunks of {limits[0][1]} tokens")
        while True:
            self.gradient.tokens = limit_at(limits, step)
            try:
                return self.gradient.compute(batch)
            except torch.cuda.OutOfMemoryError as error:
                limit = self.gradient.tokens
                freed_graphs = stop_graphs(self.method)
                if not freed_graphs and not self._can_halve(batch):
                    problem = f"step {step + 1} does not fit into the memory of the device"
                    advice = "use --set chunk_tokens=auto"
                    if limit:
                        advice = f"use a smaller chunk_tokens than {limit}, or a smaller max_length"
                    raise UnavailableError(problem, advice=advice) from error

            # The error refers to tensors of the failed pass, so free their memory after its
            # handler.
            torch.cuda.empty_cache()
            restore_random()
            if freed_graphs:
                continue
            halved = max(1, min(limit or batch.tokens, batch.tokens) // 2)
            earlier = [entry for entry in limits or [[0, UNLIMITED]] if entry[0] < step]
            limits[:] = [*earlier, [step, halved]]
            short = f"the memory of the device is short in step {step + 1}"
            self.reporter.warn(f"{short}: chunks have {halved} tokens from now on")

    def _can_halve(self, batch: Batch) -> bool:
        """Return true if a smaller limit of tokens is allowed and would make smaller chunks of this
        batch.

        With --deterministic the limit is fixed, and several processes would have to agree.
        """
        if self.recipe.chunk_tokens != AUTO or self.run.deterministic or self.processes.world > 1:
            return False
        return len(self.gradient.chunks_of(batch)) < len(batch)

    def _read_steps(self, remaining: int = 0) -> None:
        """Check and report the steps with unread values, except the last `remaining`."""
        while len(self.unread) > remaining:
            step = self.unread.popleft()
            self._check_finite(step)
            values, _ = step.values_on_host
            *terms, norm = values.tolist()

            # A step begins when the device has finished the one before.
            start_time = max(step.start_time, self.last_read)
            self.last_read = time.monotonic()
            seconds = max(self.last_read - start_time, 1e-9)
            term_of_name = dict(zip(step.term_names, terms, strict=True))
            record = {**step.record, "loss": sum(terms), "terms": term_of_name, "norm": norm}
            self._report(record, tokens_per_s=round(record["tokens"] / seconds))

    def _check_finite(self, step: UnreadStep) -> None:
        """Raise a DivergedError if a term of the loss or the norm of the gradient is not finite.

        The state before this step is then saved: neither this step nor one after it was applied.
        """
        values, has_diverged = step.values_on_host
        if not has_diverged:
            return
        self._return_to(step)
        self._check_weights()
        if step.index:
            self.save()

        problems: list[str] = []
        for name, value in zip([*step.term_names, NORM], values.tolist(), strict=True):
            if not math.isfinite(value):
                problems.append(f"{name} is {value}")
        problem = ", ".join(problems) or "a term of the loss is not finite"  # of another process
        problem = f"{problem} at step {step.index + 1}: the run cannot continue"
        raise self._diverged(problem)

    def _return_to(self, step: UnreadStep) -> None:
        """Restore the state at the beginning of a step. The weights are still those, because
        neither this step nor one after it was applied.
        """
        self.unread.clear()
        step.restore_random()
        states = self.optimizer.state
        self.optimizer.state = {
            parameter: {**states[parameter], "step": count}
            for parameter, count in step.step_counts.items()
        }
        self.position.step = step.index
        if self.recipe.chunk_tokens == AUTO:
            self.position.limits = [
                entry for entry in self.position.limits if entry[0] <= step.index
            ]

    def _check_weights(self) -> None:
        """Raise a DivergedError if weights contain NaN or infinity. They must not be saved."""
        for name, parameter in trained_parameters(self.method):
            if not torch.isfinite(parameter).all():
                problem = f"{name} contains NaN or infinity after step {self.position.step}"
                raise self._diverged(problem)

    def _diverged(self, problem: str) -> DivergedError:
        """The error of a run with values that are not finite. Of several runs, it names the run."""
        source = "training"
        if self.run.several:
            source = str(self.run.output)
        advice = "use a lower --lr"
        if self.position.step == 0:
            advice = OF_FIRST_STEP

        # What another command needs, because a run with other settings is a different one.
        flags: list[str] = []
        has_state = any(self.checkpointer.folder.glob("state-*.pt"))
        if has_state and not self.run.force:
            flags.append("add -f")
        if self.run.resume:
            flags.append("remove --resume")
        if flags:
            advice += f"; because this is a different run, {' and '.join(flags)}"
        return DivergedError(problem, source=source, advice=advice)

    def batch(self, step: int) -> Batch:
        """Return the rows and random draws of a step."""
        batch = self.run.corpus.batch(self.order.at(step))
        draws = self.method.draw(batch, partial(stream, self.run.seed, step))
        return replace(batch, draws=checked_draws(self.method, draws, len(batch)))

    def factor(self, step: int) -> float:
        """Return the factor of the learning rates in a step."""
        return factor_of(self.recipe, step, self.order.steps)

    def _report(self, record: dict[str, Any], **shown: float | None) -> None:
        """Write a record to the log; the reporter also gets `shown`."""
        if not self.processes.is_first:
            return
        self.checkpointer.write(record)
        seed = {}
        if self.run.several:
            seed = {"seed": self.run.seed}
        self.reporter.step({**seed, **record, **shown})

    # Evaluation.

    def evaluates(self, step: int) -> bool:
        """Return true if --dev is scored after this step."""
        if self.run.dev is None:
            return False
        steps = self.order.steps
        if step % self.order.epoch_steps == 0 or step == steps:
            return True
        every = self.recipe.eval_every
        if every is None:
            every = 0
            if not self.recipe.patience:
                every = min(math.ceil(steps / EVALUATIONS), MAX_INTERVAL)
        return every > 0 and step % every == 0

    def _evaluate(self) -> None:
        """Evaluate on the first process. A stop cancels the evaluation, and the resumed run repeats
        it.
        """
        score = 0.0
        is_interrupted = False
        if self.processes.is_first and self.run.dev is not None:
            try:
                score = self._score(self.run.dev)
            except Interrupted:
                is_interrupted = True

        # All processes learn the score of the first one. The others add 0 to it.
        is_interrupted, is_undefined = self.processes.any([is_interrupted, math.isnan(score)])
        [score] = self.processes.on_host([0.0 if math.isnan(score) else score], SUM)
        if is_interrupted:
            self.stop.requested = True
            return
        if is_undefined:
            score = math.nan

        is_best = self.position.add_score(score, cumulative=self.recipe.early_stop == "cumulative")
        if is_best:
            self._check_weights()
        if is_best and self.processes.is_first:
            self.checkpointer.save_best(self.position.step, changing_tensors(self.method))
        self.position.evaluated = self.position.step
        record = {
            "step": self.position.step,
            "dev": None if is_undefined else score,
            "best": is_best,
        }
        self._report(record, before=self.position.first_score)

    def _score(self, dev: EvaluationRows) -> float:
        base = self.run.base
        if self.position.step == 0 and base.declared is not None and isinstance(dev, Dev):
            return dev.score_base(base, self.method, self.stop.poll)
        return dev.best_score(self.method, self.stop.poll)

    # Saving.

    def save(self, random_states: RandomStates | None = None) -> None:
        """Write the state on the first process.

        All processes must call this without `random_states`, because each has its own generators.
        """
        if random_states is None:
            random_states = self.processes.random_states()
        if self.processes.is_first:
            on_host, on_device = random_states
            self.position.log_bytes = self.checkpointer.log_length()
            tensors = {
                "method": changing_tensors(self.method),
                "optimizer": self.optimizer.state_dict(),
                "random_states": on_host,
                "device_random_states": on_device,
            }
            identity = {
                "run": self.run.identity,
                "environment": environment(self.processes, self.recipe.precision),
            }
            self.checkpointer.save(self.position, tensors, identity, self.run.recorded)
        self.last_save = time.monotonic()

    def resume_from(self, state: Mapping[str, Any]) -> None:
        """Continue from a checked state of `save`."""
        self.position = state["position"]
        restore(self.method, state["method"])
        self.optimizer.load_state_dict(state["optimizer"])

        # The generators of this process. A run with more processes than before has new ones.
        rank = self.processes.rank
        device = self.processes.device
        on_host = state["random_states"]
        on_device = state["device_random_states"]
        if rank < len(on_host):
            device_state: Tensor | None = None
            if device.type == "cuda" and rank < len(on_device):
                device_state = on_device[rank]
            set_random_state(device, on_host[rank], device_state)


def limit_at(limits: Sequence[Sequence[int]], step: int) -> int:
    """Return the limit of a chunk in tokens at this step, or 0. Each limit has its first step."""
    limit = 0
    for first_step, tokens in limits:
        if first_step <= step:
            limit = tokens
    return limit
