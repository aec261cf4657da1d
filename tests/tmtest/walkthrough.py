"""Runs the console blocks of a page as a reader would: commands in one terminal, worker, beat and Flower in others.

`$ command` runs to its end; what follows it must be what it prints. `name $ command` goes on running in a terminal of that
name. In what is shown, `…` stands for anything within a line, and alone on a line for any number of lines; instants and
the width of columns do not matter. A command that only looks is repeated until it shows what the page shows.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from .stand import Process

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_NAME = re.compile(r"# ([\w-]+\.\w+)\n")
PROMPT = re.compile(r"^(?:(\w+) )?\$ (.*)$")
INSTANT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ")
LOOKING = re.compile(r"^(cat|curl|celery -A app tm (.* )?(list|history|occurrences|explain|status|doctor)\b)")
PATIENCE = 120.0  # the second attempt of the tutorial's job may take 30 of them


@dataclass(frozen=True)
class Command:
    """One line that a reader types, and what the page shows below it."""

    text: str
    terminal: str | None = None
    shown: list[str] = field(default_factory=list)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def fenced(page: str) -> list[tuple[str, str]]:
    """Return the fenced blocks of a page, as language and text."""
    return FENCE.findall(page)


def commands_of(block: str) -> list[Command]:
    """Return the commands of a console block with what is shown below each."""
    found: list[Command] = []
    for line in block.splitlines():
        prompt = PROMPT.match(line)
        if prompt:
            found.append(Command(prompt[2], prompt[1]))
        elif line.strip():
            found[-1].shown.append(line)
    return found


def pattern_of(shown: list[str]) -> re.Pattern[str]:
    """Return what a command's whole output must match."""
    lines = ["(?:.*\n)*?" if line.strip() == "…" else _line_pattern(line) for line in shown]
    return re.compile("".join(lines) + r"\Z")


def _line_pattern(line: str) -> str:
    parts = [re.escape(_plain(part)) for part in line.split("…")]
    return ".*".join(parts).replace(r"\ ", " *") + "\n"


def _plain(text: str) -> str:
    return re.sub(r"[ \t]+", " ", INSTANT.sub("INSTANT", text))


def matches(command: Command, output: str) -> bool:
    """Whether an output is what the page shows."""
    plain = "".join(f"{_plain(line).strip()}\n" for line in output.splitlines())
    return bool(pattern_of([line.strip() for line in command.shown]).match(plain))


class Walkthrough:
    """One reader in one folder."""

    def __init__(self, folder: Path, root: Path, replaced: dict[str, str] | None = None) -> None:
        self.folder, self.replaced = folder, replaced or {}
        self.logs = folder.parent
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TM_", "CELERY_"))}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean.get("PATH", "")])
        self.env = clean | {"PATH": path, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}
        self.terminals: dict[str, Process] = {}
        self.ended: list[Process] = []

    def read(self, page: str) -> None:
        """Do what the page says, from its beginning to its end."""
        for language, block in fenced(page):
            named = FILE_NAME.match(block)
            if named:
                (self.folder / named[1]).write_text(block)
            elif language == "console":
                for command in commands_of(block):
                    self.type(command)

    def type(self, command: Command) -> None:
        """Run one command, here or in its terminal, and compare what it shows."""
        text = command.text
        for old, new in self.replaced.items():
            text = text.replace(old, new)
        if command.terminal:
            self._start(command, text)
        else:
            self._run(command, text)

    def _run(self, command: Command, text: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            done = subprocess.run(
                ["bash", "-c", text],
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )
            if done.returncode == 0 and matches(command, done.stdout):
                return
            if not LOOKING.match(text) or time.monotonic() > deadline:
                shown = "\n".join(command.shown)
                raise AssertionError(
                    f"$ {text}\nexit {done.returncode}\n{done.stdout}{done.stderr}\nthe page shows:\n{shown}\n{self.tails()}"
                )
            time.sleep(0.2)

    def _start(self, command: Command, text: str) -> None:
        assert command.terminal
        if command.terminal in self.terminals:  # the page has killed what ran there
            before = self.terminals.pop(command.terminal)
            before.wait(PATIENCE)
            self.ended.append(before)
        log = self.logs / f"{command.terminal}{len(self.ended)}.log"
        process = Process(command.terminal, ["bash", "-c", f"cd '{self.folder}' && exec {text}"], log, self.env)
        self.terminals[command.terminal] = process
        deadline = time.monotonic() + PATIENCE
        while not matches(Command(text, shown=[*command.shown, "…"]), process.text()):
            assert process.is_running, f"{text} has ended:\n{process.text()[-3000:]}"
            assert time.monotonic() < deadline, f"{text} does not show {command.shown}:\n{process.text()[-3000:]}"
            time.sleep(0.1)

    def press_ctrl_c(self) -> None:
        """Stop what runs in the terminals, and wait until each has ended."""
        for process in self.terminals.values():
            os.kill(process.pid, signal.SIGINT)
        for process in self.terminals.values():
            process.wait(PATIENCE)  # not how: on the file broker a worker of plain Celery ends with 1, too

    def tails(self) -> str:
        """Return the last that each terminal has shown."""
        return "\n".join(f"--- {name}\n{process.text()[-1500:]}" for name, process in self.terminals.items())

    def close(self) -> None:
        """Leave nothing running."""
        for process in [*self.ended, *self.terminals.values()]:
            process.close()
