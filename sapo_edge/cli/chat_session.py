"""`sapo chat` on a terminal, or with questions from a pipe: what is typed, commands, and printed answers."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from sapo_edge.care.signals import handling
from sapo_edge.cli.output import SCHEMA, read_line
from sapo_edge.errors import Cancelled, ConfigError, SapoError
from sapo_edge.library.conversation import MAX_TEMPERATURE, Conversation, Models, Piece
from sapo_edge.plain import counted, did_you_mean, narrate, printable
from sapo_edge.rollout import MAX_QUESTION_BYTES
from sapo_edge.state.durable import write_atomically

BLOCK = '"""'
"""Begins and ends a question of several lines."""
HELP = f"""\
/reset            forget the conversation
/system TEXT      set the system text and forget the conversation; without a text, none
/task on|off      ask with the prompt of the training; each question then stands alone
/temperature T    0 to {MAX_TEMPERATURE:g}; 0 takes the most likely token
/save FILE        write the conversation as JSON
/quit             end; so does Ctrl-D. Ctrl-C stops an answer
{BLOCK}               before and after a question of several lines; a pasted one needs no such marks
A question that begins with / needs a space before it."""
_COMMANDS = ("help", "reset", "clear", "system", "task", "temperature", "save", "quit", "exit", "bye")


class ChatSession:
    """A conversation in lines of text; with `task` it begins with the prompt of the training."""

    def __init__(self, conversation: Conversation, models: Models, *, task: bool, temperature: float) -> None:
        self._conversation = conversation
        self._models = models
        self._task = task
        self._temperature = temperature

    def ask(self, text: str) -> None:
        """Print the answers to a question."""
        # An argument of the command may hold bytes that are no text, which no tokenizer takes.
        question = text.strip().encode(errors="replace")
        if not 0 < len(question) <= MAX_QUESTION_BYTES:
            raise ConfigError(f"a question has 1 to {MAX_QUESTION_BYTES} bytes", "ask another one")
        conversation = self._conversation
        printer = _Printer(named=len(conversation.speakers) > 1 or conversation.speakers == (False,))
        # Instead of raising KeyboardInterrupt in the middle of native code.
        with handling([signal.SIGINT], lambda _number, _frame: conversation.cancel()):
            forgotten = conversation.ask(
                question.decode(), task=self._task, temperature=self._temperature, show=printer, follow=True
            )
        if forgotten:
            narrate(f"forgotten, because the model has no room for them: the oldest {counted(forgotten, 'question')}")

    def run(self) -> None:
        """Answer questions and obey commands from stdin until it ends."""
        narrate("It remembers this conversation. /help shows commands; /quit or Ctrl-D ends; Ctrl-C stops an answer.")
        if not self._task:
            narrate("/task on asks with the prompt of the training, which an adapter knows best.")
        read = _line_reader()
        while (text := _read_question(read)) is not None:
            try:
                if text.startswith("/"):
                    if not self._obey(text):
                        return
                elif text.strip():
                    self.ask(text)
            except Cancelled:
                narrate("\nstopped; it is not remembered")
            except SapoError as error:
                narrate(f"{printable(error.message)}; {error.remedy}")

    def _obey(self, text: str) -> bool:
        """Obey a command; False if it ends the session."""
        name, _, argument = text[1:].partition(" ")
        name, argument, memory = name.strip().lower(), argument.strip(), self._conversation.memory
        if name in ("quit", "exit", "bye"):
            return False
        if name == "help":
            narrate(HELP)
        elif name in ("reset", "clear"):
            memory.exchanges.clear()
            narrate("the conversation is forgotten")
        elif name == "system":
            memory.system = argument
            memory.exchanges.clear()
            narrate("the system text is set" if argument else "there is no system text")
        elif name == "task":
            self._set_task(argument)
        elif name == "temperature":
            self._set_temperature(argument)
        elif name == "save":
            self._save(argument)
        else:
            raise ConfigError(f"there is no command /{printable(name)}", did_you_mean(name, _COMMANDS, "see /help"))
        return True

    def _set_task(self, argument: str) -> None:
        if argument not in ("on", "off"):
            raise ConfigError("/task is on or off", "write /task on, or /task off")
        self._task = argument == "on"
        narrate("each question stands alone, as in training" if self._task else "plain chat, which is remembered")

    def _set_temperature(self, argument: str) -> None:
        with suppress(ValueError):
            if 0 <= (temperature := float(argument)) <= MAX_TEMPERATURE:
                self._temperature = temperature
                return
        raise ConfigError(f"a temperature is a number from 0 to {MAX_TEMPERATURE:g}", "write /temperature 0.7")

    def _save(self, argument: str) -> None:
        memory = self._conversation.memory
        if not argument or not memory.exchanges:
            problem = "there is no conversation yet" if argument else "/save needs the name of a file"
            raise ConfigError(problem, "ask something, then write /save FILE")
        path = Path(argument)
        messages = {
            "adapter" if adapter else "base": [asdict(turn) for turn in memory.messages(adapter)]
            for adapter in self._conversation.speakers
        }
        record = {"v": SCHEMA, "model": self._models.model, "adapter": self._models.adapter, "messages": messages}
        try:
            path = path.expanduser()
            if path.exists():
                raise ConfigError(f"{printable(path)} is there already", "give another name")
            write_atomically(path, json.dumps(record, indent=1).encode("ascii"))
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{printable(path)} can't be written: {printable(error)}", "give another name") from error
        narrate(f"saved in {printable(path)}")


def _line_reader() -> Callable[[], str | None]:
    """A function that reads one line; it returns None at the end of stdin."""
    if sys.stdin is None:
        return lambda: None
    if sys.stdin.isatty() and sys.stdout.isatty():
        with suppress(ImportError):
            # Editing and recalling lines. A paste of several lines is one question.
            import readline

            readline.parse_and_bind("set enable-bracketed-paste on")
        return _read_terminal
    return lambda: read_line("> ", MAX_QUESTION_BYTES) or None


def _read_terminal() -> str | None:
    while True:
        try:
            return input("> ")
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            narrate("\n/quit or Ctrl-D ends")


def _read_question(read: Callable[[], str | None]) -> str | None:
    """The next question or command; None at the end. `BLOCK` stands around a question of several lines."""
    text = read()
    if text is None or not text.lstrip().startswith(BLOCK):
        return text
    lines = [text.lstrip().removeprefix(BLOCK)]
    line: str | None = lines[0]
    while line is not None and BLOCK not in line:
        line = read()
        # The rest of a text that is too long is no question, and no command.
        if line is not None and sum(map(len, lines)) <= MAX_QUESTION_BYTES:
            lines.append(line)
    # With a space before it, a text is no command.
    return " " + "\n".join(line.rstrip("\n") for line in lines).partition(BLOCK)[0].strip()


class _Printer:
    """Prints answers while they grow, one below the other, if `named` with who answers."""

    def __init__(self, *, named: bool) -> None:
        self._named = named
        self._adapter: bool | None = None
        self._printed = 0

    def __call__(self, piece: Piece) -> None:
        if piece.adapter != self._adapter:
            self._adapter, self._printed = piece.adapter, 0
            if self._named:
                print("adapter  " if piece.adapter else "base     ", end="")
        # A model may have learned escape sequences from external rollouts.
        text = printable(piece.text, lines=True)
        print(text[self._printed :], end="\n" if piece.done else "", flush=True)
        self._printed = len(text)
