"""Defences against what people's own questions may hold: the file is its owner's, the manifest may be a stranger's."""

from __future__ import annotations

from tests.defences.defence import Defence

_CHECKS = "sapo_edge/tasks/checks.py"
_FILE = "sapo_edge/tasks/question_file.py"
_MANIFEST = "sapo_edge/tasks/manifest.py"
_QUESTIONS = "sapo_edge/tasks/questions.py"
_TESTS = "tests/unit/tasks/test_own_questions.py::"
_ERRORS = _TESTS + "test_errors_name_file_and_line"
_INVALID = "tests/unit/tasks/test_manifest.py::test_an_invalid_manifest_is_rejected_with_a_remedy"
_EXPRESSIONS = _TESTS + "test_expressions_that_others_write_are_not_kept_without_end_nor_shown"
_ANY_VALUE = "tests/unit/tasks/test_manifest.py::test_no_value_of_a_question_raises_anything_but_a_manifest_error"
_BOUNDS = _TESTS + "test_a_strangers_questions_are_bounded"

DEFENCES = (
    Defence("memory of an expression", _CHECKS, "    options.max_mem = PATTERN_MEMORY\n", "", (_ERRORS,)),
    Defence(
        "expressions without going back",
        _CHECKS,
        "        return re2.compile(pattern, options)\n    except re2.error:",
        "        return re.compile(pattern)  # type: ignore[return-value]\n    except re.error:",
        (_ERRORS,),
    ),
    Defence(
        "length of an expression",
        _CHECKS,
        'check_text("pattern", self.pattern, MAX_PATTERN_BYTES)',
        'check_text("pattern", self.pattern)',
        (_ERRORS, _BOUNDS),
    ),
    Defence(
        "number of choices", _CHECKS, "2 <= len(self.choices) <= MAX_CHOICES", "2 <= len(self.choices)", (_BOUNDS,)
    ),
    Defence(
        "length of a choice",
        _CHECKS,
        'check_text("a choice", choice, MAX_CHOICE_BYTES)',
        'check_text("a choice", choice)',
        (_BOUNDS,),
    ),
    Defence(
        "memory of expressions that others write",
        _CHECKS,
        "@lru_cache(maxsize=256)",
        "@lru_cache(maxsize=None)",
        (_EXPRESSIONS,),
    ),
    Defence(
        "expressions that others write are not shown", _CHECKS, "    options.log_errors = False\n", "", (_EXPRESSIONS,)
    ),
    Defence(
        "number of texts of an expression",
        _CHECKS,
        "2 <= len(self.texts) <= MAX_ITEMS",
        "2 <= len(self.texts)",
        (_BOUNDS,),
    ),
    Defence("choices are a list", _CHECKS, "isinstance(self.choices, list | tuple) and ", "", (_ANY_VALUE,)),
    Defence("texts are a list", _CHECKS, "isinstance(self.texts, list | tuple) and ", "", (_ANY_VALUE,)),
    Defence(
        "a call inside of a call is an object",
        _CHECKS,
        'isinstance(call.get("function"), dict)',
        'call.get("function")',
        (_TESTS + "test_checks_compare_by_content", _ANY_VALUE),
    ),
    Defence(
        "a flag is a flag",
        _CHECKS,
        '        Flag(False).check("fold", self.fold)\n',
        "        pass\n",
        (_BOUNDS,),
    ),
    Defence(
        "texts that can't be encoded",
        "sapo_edge/tasks/texts.py",
        'not in ("Cc", "Cs")',
        'not in ("Cc",)',
        (_BOUNDS,),
    ),
    Defence(
        "length of a text in bytes", "sapo_edge/tasks/texts.py", 'len(text.encode("utf-8"))', "len(text)", (_BOUNDS,)
    ),
    Defence("items of a set", _CHECKS, "require(1 <= count <= MAX_ITEMS,", "require(1 <= count,", (_BOUNDS,)),
    Defence("largest tolerance", _CHECKS, "Real(0.0, MAX_TOLERANCE, 0.0)", "Real(0.0, 1e300, 0.0)", (_BOUNDS,)),
    Defence(
        "size of a file of questions",
        _FILE,
        '    require(len(data) <= MAX_FILE_BYTES, f"{path} is too large", f"keep it below {MAX_FILE_BYTES} bytes")\n',
        "",
        (_TESTS + "test_a_manifest_has_an_end",),
    ),
    Defence(
        "number of questions of a file",
        _FILE,
        '            require(len(questions) < MAX_QUESTIONS, f"{path} has too many questions", '
        'f"keep at most {MAX_QUESTIONS}")\n',
        "",
        (_TESTS + "test_a_file_has_so_many_questions_and_mistakes_at_most",),
    ),
    Defence(
        "number of mistakes that are collected",
        _FILE,
        "len(mistakes) == MAX_MISTAKES or ",
        "",
        (_TESTS + "test_a_file_has_so_many_questions_and_mistakes_at_most",),
    ),
    Defence(
        "files beside the manifest alone",
        _FILE,
        'return bool(name) and name == Path(name).name and name not in (".", "..")',
        "return bool(name)",
        (_TESTS + "test_only_a_file_beside_the_manifest_is_read",),
    ),
    Defence(
        "number of questions of an entry",
        _MANIFEST,
        '        require(count <= MAX_QUESTIONS, f"{where} has {count} questions", f"keep at most {MAX_QUESTIONS}")\n',
        "",
        (_TESTS + "test_an_entry_has_so_many_questions_at_most",),
    ),
    Defence(
        "a list with more or fewer items is another one",
        "sapo_edge/tasks/objects.py",
        "len(expected) == len(given) and ",
        "",
        ("tests/unit/tasks/test_objects.py::test_truth_is_no_number_and_an_accent_may_be_composed",),
    ),
    Defence(
        "the reading of an entry",
        _MANIFEST,
        '        require(known, f"{where}: reading is not known", nearest(str(self.reading)[:64], READINGS))\n',
        "",
        (_INVALID,),
    ),
    Defence(
        "the share of the form in a reward",
        _MANIFEST,
        '_FORM.check(f"{where}: form", self.form)',
        "self.form",
        (_INVALID,),
    ),
    Defence(
        "shape of a stranger's question",
        _QUESTIONS,
        "    shaped = isinstance(raw, list) and len(raw) == 5\n",
        "    shaped = True\n",
        (_TESTS + "test_a_strangers_questions_have_five_fields",),
    ),
)
