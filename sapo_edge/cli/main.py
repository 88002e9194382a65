"""The command line: `sapo` and `sapo-edge`."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Annotated, NoReturn, TextIO

import typer

from sapo_edge import __version__
from sapo_edge.backends.adapter.export import ExportFormat
from sapo_edge.cli import control_commands, machine_commands, swarm_commands
from sapo_edge.cli.options import BackendOption, Home, Json, ManifestOption, Model, Set
from sapo_edge.cli.output import discard_output
from sapo_edge.errors import ExitCode, SapoError
from sapo_edge.state.paths import HOME_VARIABLE

app = typer.Typer(
    name="sapo",
    help="Post-train a small language model with reinforcement learning, alone or in a swarm that shares rollouts.\n\n"
    "Without a command, the terminal app.",
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"sapo-edge {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    home: Home = None,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Post-train a small language model with reinforcement learning, alone or in a swarm that shares rollouts.

    Without a command, the terminal app.
    """
    if context.invoked_subcommand is not None:
        if home is not None:
            # A command's own --home goes first, as flags do before the environment.
            os.environ[HOME_VARIABLE] = os.path.abspath(home.expanduser())
        return
    if not (_is_terminal(sys.stdin) and _is_terminal(sys.stdout)):
        print(context.get_help())
        raise typer.Exit(ExitCode.USAGE)
    from sapo_edge.cli.terminal.app import run_app

    raise typer.Exit(run_app(home))


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


@app.command()
def run(
    rounds: Annotated[
        int | None, typer.Option(help="Stop after this round, counted from the first start; 0: never.")
    ] = None,
    model: Model = None,
    manifest: ManifestOption = None,
    backend: BackendOption = None,
    own: Annotated[int | None, typer.Option(help="I: own rollouts in an update.")] = None,
    external: Annotated[int | None, typer.Option(help="J: rollouts of others in an update.")] = None,
    questions: Annotated[int | None, typer.Option(help="Questions to answer in a round; 0: as many as I.")] = None,
    answers: Annotated[int | None, typer.Option(help="L: answers to each question.")] = None,
    solo: Annotated[bool, typer.Option("--solo", help="Work alone: share nothing, connect to nobody.")] = False,
    role: Annotated[str | None, typer.Option(help="trainer, or generator: answers and shares, never learns.")] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads; 0: measured, others go first.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything; without it, from the node's identity.")] = None,
    settings: Set = None,
    home: Home = None,
    json: Annotated[bool, typer.Option("--json", help="Print one event a line on stdout as JSON.")] = False,
) -> None:
    """Train in the foreground. Ctrl-C finishes the round and saves; a second one stops at once."""
    from sapo_edge.cli.run import run as run_node
    from sapo_edge.cli.workspace import open_workspace

    flags = {
        "rounds": rounds, "model": model, "manifest": manifest, "backend": backend, "own": own, "external": external,
        "questions": questions, "answers": answers, "threads": threads, "seed": seed, "role": role,
        "network": "solo" if solo else None,
    }  # fmt: skip
    raise typer.Exit(run_node(open_workspace(home, flags, settings), as_json=json))


Adapter = Annotated[
    Path | None, typer.Option("--adapter", help="Directory of a checkpoint or PEFT adapter; without it, the best.")
]


@app.command("eval")
def evaluate(
    adapter: Adapter = None, model: Model = None, manifest: ManifestOption = None, backend: BackendOption = None,
    questions: Annotated[int | None, typer.Option(help="Held-out questions.")] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
    settings: Set = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Compare base model and adapter on the held-out questions."""
    from sapo_edge.cli.adapters import run_eval
    from sapo_edge.cli.workspace import open_workspace

    flags = {"model": model, "manifest": manifest, "backend": backend, "held_out": questions, "threads": threads}
    run_eval(open_workspace(home, flags, settings), adapter, as_json=json)


@app.command()
def chat(
    adapter: Adapter = None, model: Model = None, manifest: ManifestOption = None, backend: BackendOption = None,
    task: Annotated[bool, typer.Option("--task", help="Ask with the manifest's prompt, as in training.")] = False,
    temperature: Annotated[float, typer.Option(min=0, max=2, help="0 takes the most likely token.")] = 0.0,
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
    settings: Set = None, home: Home = None,
    json: Annotated[bool, typer.Option("--json", help="JSON lines on stdin and stdout.")] = False,
) -> None:  # fmt: skip
    """Talk to base model and adapter side by side; each question stands alone."""
    from sapo_edge.cli.chat import run_chat
    from sapo_edge.cli.workspace import open_workspace

    flags = {"model": model, "manifest": manifest, "backend": backend, "threads": threads}
    workspace = open_workspace(home, flags, settings)
    raise typer.Exit(run_chat(workspace, adapter, task=task, temperature=temperature, as_json=json))


@app.command()
def export(
    directory: Annotated[Path, typer.Argument(help="Where to write.")],
    to: Annotated[
        ExportFormat, typer.Option("--to", help="peft for transformers, gguf for llama.cpp and Ollama, mlx for mlx-lm.")
    ],
    adapter: Adapter = None, model: Model = None, home: Home = None, json: Json = False,
) -> None:  # fmt: skip
    """Write the best adapter in a format that other programs read."""
    from sapo_edge.cli.adapters import run_export
    from sapo_edge.cli.workspace import open_workspace

    run_export(open_workspace(home, {"model": model}), adapter, directory, to, as_json=json)


@app.command()
def doctor(
    model: Model = None, manifest: ManifestOption = None, backend: BackendOption = None, home: Home = None,
    json: Json = False,
) -> None:  # fmt: skip
    """Check this machine: pass, warn or fail, each with its remedy."""
    from sapo_edge.cli.inspect import run_doctor
    from sapo_edge.cli.workspace import open_workspace

    flags = {"model": model, "manifest": manifest, "backend": backend}
    raise typer.Exit(run_doctor(open_workspace(home, flags), as_json=json))


@app.command()
def paths(home: Home = None, json: Json = False) -> None:
    """Show where settings, state and derived files are kept."""
    from sapo_edge.cli.inspect import run_paths

    run_paths(home, as_json=json)


config_app = typer.Typer(no_args_is_help=True, help="Show, change and check the settings.")
app.add_typer(config_app, name="config")


@config_app.command("show")
def config_show(home: Home = None, json: Json = False) -> None:
    """Every setting with its value and where that comes from."""
    from sapo_edge.cli.inspect import run_config_show
    from sapo_edge.cli.workspace import open_workspace

    run_config_show(open_workspace(home), as_json=json)


@config_app.command("set")
def config_set(name: str, value: Annotated[str | None, typer.Argument()] = None, home: Home = None) -> None:
    """Write a setting into config.toml; without a value, take it out."""
    from sapo_edge.config.layers import set_value
    from sapo_edge.state.paths import Paths

    where = Paths.default(home)
    where.create()
    set_value(where.config_file, name, value)
    print(where.config_file)


@config_app.command("validate")
def config_validate(home: Home = None) -> None:
    """Check config.toml and the environment."""
    from sapo_edge.cli.workspace import open_workspace

    print(f"{open_workspace(home).paths.config_file}: nothing to complain about")


control_commands.register(app)
machine_commands.register(app)
swarm_commands.register(app)


def main() -> NoReturn:
    """Run a command and end with its documented exit code."""
    code: object = ExitCode.DONE
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except SystemExit as end:
        # So typer ends by itself: a command's own code, 2 for wrong usage, 130 after Ctrl-C.
        code = end.code
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except SapoError as error:
        print(f"sapo: {error}", file=sys.stderr)
        code = error.exit_code
    except OSError as error:
        if error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        # A reader that went away wants no message.
        if error.errno == errno.ENOSPC:
            print("sapo: the output can't be written, the disk is full; free some space on it", file=sys.stderr)
        discard_output()
        code = ExitCode.FAILED
    sys.exit(code)  # type: ignore[arg-type]
