"""Make the data of the skill `home` from Home Assistant's sentences; run by hand, not part of sapo-edge.

    python -m venv .venv-home && .venv-home/bin/pip install hassil==3.12.1 home-assistant-intents==2026.10.27
    .venv-home/bin/python packaging/home/make.py [--unused] [LANGUAGE...]

The package's templates are made to recognise speech: they also accept what nobody says ("switch out each and every the
lamp") and what means two things. This script writes out each template's sentences, keeps those that a person could say,
and stores a few of them. The file of a language beside this one narrows the package's rules, says what to reject, how
words agree, and which devices a home has. Wordings of our own, for training alone, are in a second file of a language.
Nothing of hassil is needed afterwards.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import random
import re
import sys
import tomllib
from collections import defaultdict
from importlib import resources
from pathlib import Path
from typing import Any

from hassil.expression import Alternative, Expression, Group, ListReference, Permutation, RuleReference, TextChunk
from hassil.parse_expression import parse_sentence

HERE = Path(__file__).parent
DATA = HERE.parent.parent / "sapo_edge" / "tasks" / "skills" / "data"
DRAWS = 250
"""Random walks through a template, from which its sentences are taken."""
HELD_OUT_DRAWS = 4000
"""Walks through a held-out template for what it can say, which no wording of our own may."""
PARTS = ("train", "validation", "test")
WITHOUT = {"HassRespond"}
"""Small talk: it calls nothing."""
RANGES = {
    "temperature": [10, 28, 1],
    "position": [1, 100, 1],
    "fan_speed": [1, 100, 1],
    "brightness": [1, 100, 1],
    "volume": [1, 100, 1],
    "volume_level": [1, 100, 1],
    "volume_step_up": [2, 50, 1],
    "volume_step_down": [2, 50, -1],
    "color_temperature": [2000, 6500, 100],
    "timer_seconds": [2, 59, 1],
    "timer_minutes": [2, 59, 1],
    "timer_hours": [2, 12, 1],
}
"""Lists of numbers: lowest, highest, and step; a negative step stands for a negative answer."""
WILDCARDS = {"search_query": "query", "shopping_list_item": "item", "todo_list_item": "todo_item"}
DOMAINS = {"input_button": "button"}
EVERYWHERE = re.compile(r"ueberall|toda a casa|(?<!\[)<(todas_partes|partout|everywhere)>")
"""What says "in the whole house" in a template that does not say it in its data."""
PLACED = ("light", "switch", "cover", "climate", "media_player", "fan", "lock", "binary_sensor", "occupancy", "sensor")
"""Kinds of devices that are also named after a room."""
ELSEWHERE = {"input_boolean", "person", "weather", "todo", "script", "scene", "button"}
"""Kinds of names that are in no room."""


def digest(*parts: object) -> str:
    """For an order that has no meaning and never changes."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()


def parse_name(entry: str) -> tuple[str, str, str]:
    """Codes, form in compounds and name of `codes|form:name`; what is missing is ""."""
    before, _, name = entry.rpartition(":")
    codes, _, form = before.partition("|")
    return codes, form, name


def bare(sentence: str) -> str:
    """A sentence without what its slots are drawn from and agree with."""
    return re.sub(r"\{(\w+)=\w+/[^}]*\}|\{(?:\w+:)?(\w+)\}", lambda slot: f"{{{slot[1] or slot[2]}}}", sentence)


class Language:
    """The templates of one language and what its file says about them."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.file: dict[str, Any] = tomllib.loads((HERE / f"{code}.toml").read_text("utf-8"))
        text = resources.files("home_assistant_intents").joinpath("data", f"{self.file['source']}.json").read_bytes()
        self.sha256 = hashlib.sha256(text).hexdigest()
        self.package = json.loads(text)
        self.rules = {**self.package["expansion_rules"], **self.file.get("rules", {})}
        self.reject = [re.compile(pattern) for pattern in self.file["reject"]]
        self.agree = [(re.compile(slot), re.compile(left), codes) for slot, left, codes in self.file["agree"]]
        self.replace = [(re.compile(pattern), text) for pattern, text in self.file.get("replace", [])]
        self.parsed: dict[str, Expression] = {}
        self.unused: set[str] = set()
        self.meanings: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        self.held_out: list[dict[str, Any]] = []
        self.used: dict[str, int] = defaultdict(int)

    def walk(self, item: Expression, rng: random.Random) -> str:
        """One sentence of an expression, with {list:slot} for what is filled in later."""
        match item:
            case TextChunk():
                return item.original_text
            case Alternative():
                return self.walk(rng.choice(item.items), rng)
            case Permutation():
                return " ".join(self.walk(one, rng) for one in rng.sample(item.items, len(item.items)))
            case Group():
                return "".join(self.walk(one, rng) for one in item.items)
            case ListReference():
                name = item.list_name
                return f"{{{name}}}" if item.slot_name == name else f"{{{name}:{item.slot_name}}}"
            case RuleReference():
                return self.walk(self.rule(item.rule_name), rng)
        raise TypeError(item)

    def rule(self, name: str) -> Expression:
        """The expression of a rule, parsed once."""
        if name not in self.parsed:
            self.parsed[name] = parse_sentence(self.rules[name]).expression
        return self.parsed[name]

    def sentences(self, tag: str, template: str) -> list[str]:
        """What a person could say of a template, in an order that has no meaning."""
        for pattern, text in self.replace:
            template = pattern.sub(text, template)
        expression, rng = parse_sentence(template).expression, random.Random(template)
        walked = {" ".join(self.walk(expression, rng).split()) for _ in range(DRAWS)}
        kept = [one for one in walked if not any(pattern.search(f"{tag}: {one}") for pattern in self.reject)]
        return sorted(filter(None, map(self.with_agreement, kept)), key=digest)

    def with_agreement(self, sentence: str) -> str | None:
        """The sentence with {slot=list/codes}: only what has one of the codes fits there; None if nothing may."""
        parts, end = [], 0
        slots = {match[2] or match[1] for match in re.finditer(r"\{(\w+):?(\w+)?\}", sentence)}
        for match in re.finditer(r"\{(\w+):?(\w+)?\}", sentence):
            codes = self.codes(match[0][1:-1], sentence[: match.start()], sentence, slots)
            if codes == "!":
                return None
            parts.append(f"{sentence[end : match.start()]}{{{match[2] or match[1]}={self.list_of(match[1])}/{codes}}}")
            end = match.end()
        return "".join(parts) + sentence[end:]

    def codes(self, slot: str, left: str, sentence: str, slots: set[str]) -> str:
        """The first rule of agreement that fits a slot; `@slot` needs that slot in the sentence."""
        for pattern, before, codes in self.agree:
            fits = pattern.fullmatch(slot) and before.search(left if before.pattern.endswith("$") else sentence)
            if fits and (not codes.startswith("@") or codes[1:] in slots):
                return codes
        return ""

    def list_of(self, name: str) -> str:
        return WILDCARDS.get(name, name)

    def surfaces(self, name: str) -> list[list[Any]]:
        """The words of a list, each as [codes, words, answer]."""
        if name in self.file.get("lists", {}):
            return [list(entry) for entry in self.file["lists"][name]]
        listed = []
        for value in self.package["lists"][name]["values"]:
            rng = random.Random(str(value["in"]))
            expression = parse_sentence(value["in"]).expression
            for words in sorted({" ".join(self.walk(expression, rng).split()) for _ in range(200)}):
                listed.append(["", words, value["out"]])
        return listed

    def names(self) -> dict[str, list[list[list[str]]]]:
        """Names by kind, each in one part: [codes, name]. What a test asks for is never seen in training."""
        part_of: dict[str, int] = {}
        made: dict[str, list[list[list[str]]]] = {}
        kinds = {kind: [entry.strip() for entry in text.split(";")] for kind, text in self.file["names"].items()}
        rooms = []
        for kind, entries in kinds.items():
            parsed = [parse_name(entry) for entry in entries]
            shares: list[list[list[str]]] = [[], [], []]
            fresh = sorted((entry for entry in parsed if entry[2] not in part_of), key=lambda entry: digest(entry[2]))
            held = max(3, len(parsed) // 7)
            for rank, entry in enumerate(fresh):
                part_of[entry[2]] = 2 if rank < held else 1 if rank < 2 * held else 0
            for codes, form, name in parsed:
                shares[part_of[name]].append([codes, name])
                if kind == "area":
                    rooms.append((codes, form or name, name))
            made[kind] = shares
        for kind in PLACED:
            made[f"{kind}+"] = [[], [], []]
            for codes, noun in (entry for share in made.get(kind, []) for entry in share if "x" not in entry[0]):
                for room, form, area in sorted(rooms, key=lambda room: digest(noun, room))[:8]:
                    name = self.placed(noun, room, form)
                    part = max(part_of[noun], part_of[area], key=lambda part: (part > 0, -part))
                    if part_of.setdefault(name, part) == part:
                        made[f"{kind}+"][part].append([codes, name])
        return made

    def placed(self, noun: str, room: str, form: str) -> str:
        """A device named after its room."""
        if self.code == "en":
            return f"{form} {noun}"
        if self.code == "de":
            return form + (
                "-" + noun if noun[:2].isupper() or "-" in noun or " " in noun else noun[0].lower() + noun[1:]
            )
        return f"{noun} {form}"

    def templates(self) -> list[dict[str, Any]]:
        """Templates with their part, each with its sentences."""
        grouped: dict[tuple[str, str, str], dict[str, Any]] = {}
        for intent, content in self.package["intents"].items():
            if intent in WITHOUT:
                continue
            for block in content["data"]:
                fixed = dict(block.get("slots", {}))
                if intent == "HassGetState" and block["response"] in ("any", "all", "which", "how_many"):
                    fixed["ask"] = block["response"]
                everywhere = block["metadata"]["slot_combination"] == "domain_all"
                domains = block.get("requires_context", {}).get("domain", [])
                domains = [domains] if isinstance(domains, str) else domains
                for text in block["sentences"]:
                    name = intent.removeprefix("Hass")
                    if everywhere or (name.startswith("Turn") and EVERYWHERE.search(text)):
                        fixed = {**fixed, "area": "all"}
                    key = (name, text, json.dumps(fixed, sort_keys=True))
                    kinds = [DOMAINS.get(domain, domain) for domain in domains]
                    if kinds == ["binary_sensor"] and "occupancy" in text:
                        kinds = ["occupancy"]
                    record = grouped.setdefault(key, {"intent": name, "text": text, "fixed": fixed, "kinds": []})
                    record["kinds"] += [kind for kind in kinds if kind not in record["kinds"]]
        for record in grouped.values():
            tag = f"{record['intent']}{record['kinds']}"
            record["sentences"] = self.sentences(tag, record["text"])
            if not record["sentences"]:
                self.unused.add(f"{tag}: {record['text']}")
        kept = [record for record in grouped.values() if record["sentences"]]
        self.split(kept)
        return self.without_doubles(kept)

    def split(self, records: list[dict[str, Any]]) -> None:
        """Give each template a part by the digest of its text: of each intent about 8 in 10 train."""
        intents = defaultdict(set)
        for record in records:
            intents[record["intent"]].add(record["text"])
        parts = {}
        for intent, texts in intents.items():
            held = (len(texts) + 5) // 10
            test, validation = max(held, len(texts) >= 3), max(held, len(texts) >= 4)
            for rank, text in enumerate(sorted(texts, key=lambda text: digest(intent, text))):
                parts[intent, text] = 2 if rank < test else 1 if rank < test + validation else 0
        for record in records:
            record["part"] = parts[record["intent"], record["text"]]

    def without_doubles(self, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Leave out what means two things, and of held-out templates what a template of training says, too."""
        owner: dict[str, int] = {}
        for record in sorted(records, key=lambda record: record["part"]):
            for sentence in record["sentences"]:
                self.note_meaning(record, sentence)
                owner.setdefault(bare(sentence), record["part"])
        most = self.file["most"]
        for record in records:
            clear = []
            for sentence in record["sentences"]:
                if owner[bare(sentence)] == record["part"] and self.one_meaning(sentence):
                    clear.append(sentence)
            record["sentences"] = clear[:most]
        self.held_out = [record for record in records if record["part"]]
        return [record for record in records if record["sentences"]]

    def note_meaning(self, record: dict[str, Any], sentence: str) -> None:
        """Remember the call that a sentence stands for."""
        slots = sorted(re.findall(r"\{(\w+)=", sentence))
        lists = [name for name in re.findall(r"=(\w+)/", sentence) if name in WILDCARDS.values()]
        call = json.dumps([record["intent"], record["fixed"], slots, lists], sort_keys=True)
        self.meanings[bare(sentence)][call].update(record["kinds"] if "{name=name/" in sentence else [])

    def one_meaning(self, sentence: str) -> bool:
        """Whether a sentence stands for one call, or for several that the names of devices tell apart."""
        kinds = list(self.meanings[bare(sentence)].values())
        return len(kinds) == 1 or (all(kinds) and sum(map(len, kinds)) == len(set().union(*kinds)))

    def wordings(self, rows: list[list[Any]]) -> list[list[Any]]:
        """Rows of our own wordings for training, without what a held-out template can say."""
        file = HERE / f"{self.code}_wordings.toml"
        if not file.exists():
            return []

        def words(sentence: str) -> str:
            return bare(sentence).replace(",", "").lower()

        said = {(words(sentence), row[0], *row[3]) for row in rows if not row[1] for sentence in row[4]}
        held_out: set[str] = set()
        for record in self.held_out:
            expression, rng = parse_sentence(record["text"]).expression, random.Random(record["text"])
            for _ in range(HELD_OUT_DRAWS):
                held_out.add(words(" ".join(self.walk(expression, rng).split())))
        own = []
        for table in tomllib.loads(file.read_text("utf-8"))["wordings"]:
            record = {"fixed": {}, "kinds": [], **table}
            for group in table["sentences"].strip().split("\n\n"):
                sentences = [self.with_agreement(line) or sys.exit(f"in no form: {line}") for line in group.split("\n")]
                if len({tuple(sorted(re.findall(r"\{(\w+)=", one))) for one in sentences}) > 1:
                    sys.exit(f"a row with several sets of slots: {group}")
                for sentence in sentences:
                    self.note_meaning({**record, "kinds": [kind.rstrip("+") for kind in record["kinds"]]}, sentence)
                own.append([record["intent"], 0, record["fixed"], record["kinds"], sentences])
        for row in own:
            kept = []
            for sentence in row[4]:
                key = (words(sentence), row[0], *row[3])
                if key[0] in held_out:
                    self.used["held out"] += 1
                elif key in said:
                    self.used["said already"] += 1
                elif not self.one_meaning(sentence):
                    self.used["two meanings"] += 1
                    print("two meanings:", row[0], sentence)
                else:
                    kept.append(sentence)
                    said.add(key)
                    self.used["used"] += 1
            row[4] = kept
        return [row for row in own if row[4]]

    def data(self) -> dict[str, Any]:
        """What the language's file in the package holds."""
        names, templates, lists = self.names(), self.templates(), {}
        rows = []
        for record in sorted(templates, key=lambda record: (record["intent"], record["part"], record["text"])):
            sentences = record["sentences"]
            inside = any("{area=" in one or "{floor=" in one for one in sentences)
            kinds = []
            for kind in record["kinds"]:
                if not inside or kind not in ELSEWHERE or record["kinds"] == ["scene"]:
                    kinds += [kind] * (kind in names) + [f"{kind}+"] * (f"{kind}+" in names and not inside)
            sentences = [one for one in sentences if fillable(one, kinds, names, record["part"])]
            if not sentences:
                continue
            for name in re.findall(r"=(\w+)/", "\n".join(sentences)):
                if name not in RANGES and name not in names and name != "name":
                    lists[name] = self.surfaces(name)
            rows.append([record["intent"], record["part"], record["fixed"], kinds, sentences])
        rows += self.wordings(rows)
        version = importlib.metadata.version("home-assistant-intents")
        return {
            "source": f"home-assistant-intents {version}, data/{self.file['source']}.json, SHA-256 {self.sha256}",
            "comma": self.file.get("comma", "."),
            "polite": self.file["polite"],
            "ranges": RANGES,
            "lists": dict(sorted(lists.items())),
            "names": names,
            "templates": rows,
        }


def fillable(sentence: str, kinds: list[str], names: dict[str, list[list[list[str]]]], part: int) -> bool:
    """Whether a part has names that fit each slot of a sentence."""
    for name, fitting in re.findall(r"=(\w+)/([^}]*)", sentence):
        entries = [one for kind in (kinds if name == "name" else [name]) for one in names.get(kind, [[]] * 3)[part]]
        known = name == "name" or name in names
        if known and not any(not codes or not fitting or set(codes) & set(fitting) for codes, _ in entries):
            return fitting.startswith("@") and bool(entries)
    return True


def to_text(data: dict[str, Any]) -> str:
    """JSON with a line for each list and each template, so that changes can be read."""

    def dump(value: object) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    lines = [f'"{key}":{dump(data[key])}' for key in ("source", "comma", "polite", "ranges")]
    for key in ("lists", "names"):
        lines.append(f'"{key}":{{\n' + ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in data[key].items()) + "}")
    lines.append('"templates":[\n' + ",\n".join(map(dump, data["templates"])) + "]")
    return "{" + ",\n".join(lines) + "}\n"


def main() -> None:
    """Write the data of the languages that are named, or of all."""
    arguments = sys.argv[1:]
    unused = "--unused" in arguments
    codes = [one for one in arguments if not one.startswith("--")] or ["de", "en", "es", "fr", "pt"]
    for code in codes:
        language = Language(code)
        data = language.data()
        text = to_text(data)
        (DATA / f"{code}.json").write_text(text, "utf-8")
        counts = [sum(row[1] == part for row in data["templates"]) for part in range(3)]
        intents = len({row[0] for row in data["templates"]})
        templates = dict(zip(PARTS, counts, strict=True))
        print(code, f"{len(text)} bytes", f"{intents} intents", templates, "templates;", end=" ")
        print(f"{sum(len(row[4]) for row in data['templates'])} sentences; {len(language.unused)} templates left out")
        if language.used:
            print("wordings of our own:", dict(sorted(language.used.items())))
        if unused:
            print(*sorted(language.unused), sep="\n")


if __name__ == "__main__":
    main()
