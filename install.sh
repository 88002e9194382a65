#!/bin/sh
# Installs the commands `sapo` and `sapo-edge` for this user, without a compiler and without root: from the clone or the
# release that this script lies in.
#
#   sh install.sh                  what learns: the app, torch for this machine, llama.cpp, the embedded model
#   sh install.sh --generator      what only answers and relays, without torch, for small machines
#   sh install.sh --folder DIR     everything that others need to install this without the internet
#   sh install.sh --from DIR       from such a folder, which has this script, too
#   sh install.sh --uninstall      removes the program; what nodes learned stays (`sapo uninstall` removes that)
#
# It can be run again, to install what is newer. uv installs; where there is none, it is brought to
# ~/.local/share/sapo-edge/uv from PyPI. UV_TORCH_BACKEND chooses torch's build (auto, cpu, cu128, ...); none takes
# what the index has.
set -eu
# With it, cd prints where it goes.
unset CDPATH
UV_VERSION=0.13.9
here=$(cd "$(dirname "$0")" && pwd)
place=${XDG_DATA_HOME:-$HOME/.local/share}/sapo-edge/uv
torch=${UV_TORCH_BACKEND:-auto}
unset UV_TORCH_BACKEND
# libp2p's libraries have no wheels for Python 3.14. Where no other is installed, uv fetches one.
export UV_PYTHON="${UV_PYTHON:->=3.11,<3.14}"
kind=learns from= folder=

say() { echo "install.sh: $*" >&2; }
end() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
    case $1 in
        --generator) kind=answers ;;
        --uninstall) kind=nothing ;;
        --from | --folder)
            [ $# -gt 1 ] || end "$1 needs a directory"
            [ "$1" = --from ] || mkdir -p "$2"
            [ -d "$2" ] || end "there is no directory $2"
            [ "$1" = --from ] && from=$(cd "$2" && pwd) || folder=$(cd "$2" && pwd)
            shift ;;
        *) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
    shift
done

# Takes uv out of its wheel: of a folder, or of PyPI, whose list has the wheel's SHA-256.
bring_uv() {
    command -v python3 >/dev/null || end "there is no python3: install it first (Debian: apt install python3)"
    say "bringing uv to $place"
    python3 - "$place" "$UV_VERSION" "$1" "$2" <<'PYTHON' || end "try again, or install uv in another way"
import hashlib, io, json, os, pathlib, platform, sys, urllib.request, zipfile
sys.excepthook = lambda kind, error, trace: print(error, file=sys.stderr)
place, version, source, copy = sys.argv[1:]
machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine().lower(), platform.machine().lower())
system = "macosx" if sys.platform == "darwin" else "manylinux"
if system == "macosx" and machine == "aarch64":
    machine = "arm64"
fits = lambda name: name.endswith(".whl") and system in name and machine in name
if source:
    files = pathlib.Path(source).glob("uv-*.whl")
    file = next((path for path in files if fits(path.name)), None) or sys.exit(f"{source} has no uv for this machine")
    name, data = file.name, file.read_bytes()
else:
    index = urllib.request.Request(
        "https://pypi.org/simple/uv/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(index, timeout=60) as answer:
        files = json.load(answer)["files"]
    found = next(file for file in files if file["filename"].startswith(f"uv-{version}-") and fits(file["filename"]))
    with urllib.request.urlopen(found["url"], timeout=60) as answer:
        name, data = found["filename"], answer.read()
    if hashlib.sha256(data).hexdigest() != found["hashes"]["sha256"]:
        sys.exit("uv's wheel is not what PyPI says that it is: try again")
if copy:
    pathlib.Path(copy, name).write_bytes(data)
with zipfile.ZipFile(io.BytesIO(data)) as wheel:
    inside = next(entry for entry in wheel.namelist() if entry.endswith("/scripts/uv"))
    os.makedirs(place, exist_ok=True)
    target = pathlib.Path(place, "uv")
    target.write_bytes(wheel.read(inside))
    target.chmod(0o755)
PYTHON
}

uv=$(command -v uv || true)
[ -n "$uv" ] || uv=$place/uv
if [ "$kind" = nothing ]; then
    [ -x "$uv" ] || end "uv is gone, and so is what it installed"
    "$uv" tool uninstall sapo-edge
    rm -rf "$place"
    exit
fi
[ -x "$uv" ] && [ -z "$folder" ] || bring_uv "$from" "$folder"
[ -x "$uv" ] || uv=$place/uv
# What a uv of its own has downloaded goes with it.
[ "$uv" != "$place/uv" ] || export UV_CACHE_DIR="${UV_CACHE_DIR:-$place/cache}"

links=${from:-$here}
# A release has its wheels beside this script.
if [ -z "$from" ] && [ -f "$here/packaging/wheels.py" ]; then
    links=$here/dist
    say "making wheels of what PyPI has as sources alone"
    "$uv" run --quiet --no-project --with pip python "$here/packaging/wheels.py" >/dev/null
fi
constraints=$here/constraints.txt
if [ "$kind" = answers ]; then
    wheel=$(ls "$links"/sapo_edge-*+core-*.whl) extras=swarm,tui,llama,starter
else
    wheel=$(ls "$links"/sapo_edge-*.whl | grep -v +core) extras=starter,llama
fi
if [ -n "$folder" ]; then
    say "collecting what others need in $folder; it is for machines like this one"
    # Those of other versions go: the others' script takes the only one.
    [ "$folder" = "$links" ] || { rm -f "$folder"/sapo_edge-*.whl; cp "$links"/*.whl "$folder"; }
    [ "$folder" = "$here" ] || cp "$constraints" "$0" "$folder"
    collect() {
        "$uv" run --quiet --no-project --with pip python -m pip download --quiet --disable-pip-version-check \
            --constraint "$constraints" --find-links "$folder" --dest "$folder" "$@"
    }
    # PyPI's torch brings 3 GB of CUDA. That index lacks some versions of what torch requires.
    if [ "$kind" = learns ] && [ "$torch" != none ]; then
        collect --no-deps --index-url https://download.pytorch.org/whl/cpu torch || say "taking PyPI's torch"
    fi
    collect "${wheel}[$extras]"
    say "done: on another machine, sh $folder/install.sh --from $folder"
    exit
fi
# As an option it would replace what the variable holds.
export UV_FIND_LINKS="$links${UV_FIND_LINKS:+,$UV_FIND_LINKS}"
set -- tool install --quiet --constraints "$constraints"
if [ -n "$from" ]; then
    set -- "$@" --offline --no-index
elif [ "$torch" != none ]; then
    set -- "$@" --torch-backend "$torch"
fi
say "installing, which takes a minute or more"
environment=$("$uv" tool dir)/sapo-edge
# What is installed already is kept where it fits: torch is not fetched again.
if ! { [ -d "$environment" ] && "$uv" "$@" --reinstall-package sapo-edge "${wheel}[$extras]" 2>/dev/null; } &&
    ! "$uv" "$@" --force "${wheel}[$extras]"; then
    [ -n "$from" ] || say "is PyTorch's index out of reach? UV_TORCH_BACKEND=none takes torch from PyPI (Linux: 3 GB)"
    end "nothing was installed"
fi
# What a uv of its own has downloaded shares its files with the installation.
[ "${UV_CACHE_DIR:-}" != "$place/cache" ] || rm -rf "$place/cache"
"$environment/bin/python" -m sapo_edge.trimming >&2 || say "it works, though nothing was trimmed"
"$uv" tool update-shell --quiet 2>/dev/null || true
say "installed in $environment; begin with: $("$uv" tool dir --bin)/sapo"
