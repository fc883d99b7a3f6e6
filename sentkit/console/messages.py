"""Notes, warnings and errors of a command."""

from dataclasses import dataclass

from sentkit.console.stream import on_terminal, write_line


@dataclass(slots=True)
class Console:
    command: str
    quiet: bool = False
    verbose: bool = False

    def error(self, message: str, advice: str | None = None) -> None:
        self.say(message)
        if advice:
            write_line(f"  {advice}")

    def warn(self, message: str) -> None:
        if not self.quiet:
            self.say(f"warning: {message}")

    def note(self, message: str) -> None:
        """Print with -v, or on a terminal."""
        if self.verbose or (not self.quiet and on_terminal()):
            self.say(message)

    def report(self, message: str) -> None:
        """Print, except with -q."""
        if not self.quiet:
            self.say(message)

    def say(self, message: str) -> None:
        write_line(f"sentkit {self.command}: {message}" if self.command else f"sentkit: {message}")
