"""The defects of embedding servers, planted one after the other, and the verdict of `sentkit diff`.

Transformers computes the vectors of the included texts with a defect (`tests/defects.py`), a server
on the loopback answers with them, and `sentkit diff http://127.0.0.1:PORT/v1#NAME -m FOLDER` names
the cause. Prints a row for each defect and each model: the first cause, the texts that it explains,
and CPU seconds of the command with one thread.

    python referee.py [nano,minilm,decoder,modernbert] [NUMBER,...]

Number 0 are the differences without a cause.
"""

import io
import json
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch

sys.path.append(str(Path(__file__).parents[1]))
from usage import check_arguments

from api_server import api_server  # of the tests, which are not installed
from defects import (
    BODIES,
    DEFECTS,
    HEALTHY,
    POOLING,
    QUERY,
    Program,
    declare,
    hazard_texts,
    make_body,
)
from sentkit import cli


class Ended(BaseException):
    """In place of the end of the process."""


def leave(code):
    raise Ended(code)


def run_diff(*arguments):
    """The exit code and the output of `sentkit diff` in this process."""
    stdout = io.TextIOWrapper(io.BytesIO())
    streams = (sys.argv, sys.stdout, sys.stderr)
    sys.argv = ["sentkit", "diff", *map(str, arguments)]
    sys.stdout = stdout
    sys.stderr = io.StringIO()
    try:
        cli.main()
    except Ended as end:
        code = end.args[0]
        errors = sys.stderr.getvalue()
    finally:
        sys.argv, sys.stdout, sys.stderr = streams
    stdout.flush()
    output = stdout.buffer.getvalue()
    if code:
        return code, errors
    return code, json.loads(output)


def answers(texts, vectors):
    """A function from texts to their vectors; any other text has the vector of the first one."""
    row_of_text = {text: row for row, text in enumerate(texts)}
    return lambda asked: vectors[[row_of_text.get(text, 0) for text in asked]]


class Bench:
    """The declared folders of a body, and their programs."""

    def __init__(self, body, folder):
        self.body = body
        self.folder = folder
        self.weights = make_body(body, folder / "weights")
        self.programs = {}

    def program(self, declaration):
        options = {"pooling": POOLING[self.body], "max_length": 512}
        if self.body == "minilm":
            options["max_length"] = 256
        options |= dict(declaration)
        key = tuple(sorted(options.items()))
        if key not in self.programs:
            folder = declare(self.weights, self.folder / str(len(self.programs)), **options)
            self.programs[key] = Program(
                folder,
                options["pooling"],
                dense=options.get("dense", False),
                prompt=QUERY if options.get("prompts") else "",
                max_length=options["max_length"],
            )
        return self.programs[key]

    def judge(self, encode, declaration, texts, *, base64=True):
        """The explanation of `sentkit diff`, and its CPU seconds."""
        program = self.program(declaration)
        vectors = np.array(encode(program, texts))
        with api_server(answers(texts, vectors)) as server:
            server.base64 = base64
            start = time.process_time()
            code, report = run_diff(server.model, "-m", program.folder)
            seconds = time.process_time() - start
        if code:
            return {"equal": False, "changes": [], "text": f"exit {code}: {report}"}, seconds
        return report["explanation"], seconds


def verdict_of(explanation):
    if explanation["equal"]:
        return f"equal within {explanation['within']:.0e}"
    if not explanation["changes"]:
        return explanation["text"]
    cause = explanation["causes"][0]
    names = [*explanation["changes"], *cause["same_vectors"]]
    return f"{' / '.join(names)} ({cause['texts']} of {cause['of']})"


def main(bodies=None, numbers=None):
    check_arguments(__doc__, most=2)
    warnings.simplefilter("ignore")
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    cli.exit_immediately = leave
    signal.signal = lambda *arguments: None
    chosen = numbers and {*map(int, numbers.split(","))}
    texts = hazard_texts()
    print("| | defect | model | named | verdict | seconds |\n|---|---|---|---|---|---|")
    chosen_bodies = bodies.split(",") if bodies else BODIES
    for body in chosen_bodies:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(body, Path(folder))
            if bench.weights is None:
                continue
            healthy = [(0, name, encode, (), None) for name, encode in HEALTHY.items()]
            planted = [
                (case.number, case.name, case.encode, case.declaration, case.causes)
                for case in DEFECTS
                if body in case.bodies
            ]
            for number, name, encode, declaration, causes in [*healthy, *planted]:
                if chosen and number not in chosen:
                    continue
                explanation, seconds = bench.judge(encode, declaration, texts)
                is_named = explanation["equal"]
                if causes is not None:
                    first = explanation.get("changes", [])[:1]
                    is_named = bool(first) and first[0].startswith(causes)
                cells = [number, name, body, "yes" if is_named else "**no**"]
                cells += [verdict_of(explanation), f"{seconds:.1f}"]
                print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            if not chosen or 0 in chosen:
                explanation, seconds = bench.judge(HEALTHY["fp32"], (), texts, base64=False)
                named = "yes" if explanation["equal"] else "**no**"
                print(
                    f"| 0 | answers as lists of numbers | {body} | {named} | "
                    f"{verdict_of(explanation)} | {seconds:.1f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main(*sys.argv[1:])
