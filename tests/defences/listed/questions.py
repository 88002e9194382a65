"""Defences against what people's own questions may hold: the file is its owner's, the manifest may be a stranger's."""

from __future__ import annotations

from tests.defences.defence import Defence

_CHECKS = "sapo_edge/tasks/checks.py"
_FILE = "sapo_edge/tasks/question_file.py"
_MANIFEST = "sapo_edge/tasks/manifest.py"
_QUESTIONS = "sapo_edge/tasks/questions.py"
_TESTS = "tests/unit/tasks/test_own_questions.py::"
_TABLE = "sapo_edge/tasks/question_table.py"
_ALLOWED = "sapo_edge/tasks/allowed.py"
_DATA = "sapo_edge/tasks/question_data.py"
_DATA_TESTS = "tests/unit/tasks/test_question_data.py::"
_ERRORS = _TESTS + "test_errors_name_file_and_line"
_INVALID = "tests/unit/tasks/test_manifest.py::test_an_invalid_manifest_is_rejected_with_a_remedy"
_EXPRESSIONS = _TESTS + "test_expressions_that_others_write_are_not_kept_without_end_nor_shown"
_ANY_VALUE = "tests/unit/tasks/test_manifest.py::test_no_value_of_a_question_raises_anything_but_a_manifest_error"
_READINGS = "sapo_edge/tasks/readings.py"
_READINGS_TESTS = "tests/unit/tasks/test_readings.py::"
_READ = _READINGS_TESTS + "test_no_text_gives_more_than_four_answers_of_bounded_length"
_LINES = _DATA_TESTS + "test_a_line_without_end_takes_little_memory"
_NAMES = "tests/unit/tasks/test_manifest.py::test_messages_never_carry_a_long_or_unprintable_key"
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
        r"\x9f\ud800-\udfff]",
        r"\x9f]",
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
        "            if os.fstat(file.fileno()).st_size > size:\n",
        "            if False:\n",
        (_TESTS + "test_a_manifest_has_an_end", _DATA_TESTS + "test_the_limits_are_those_that_are_promised"),
    ),
    Defence(
        "number of questions of a file",
        _FILE,
        "            if count == most:\n",
        "            if False:\n",
        (_TESTS + "test_a_file_has_so_many_questions_and_mistakes_at_most",),
    ),
    Defence(
        "number of mistakes that are collected",
        _FILE,
        "mistakes += itertools.islice(lines, MAX_MISTAKES)",
        "mistakes += lines",
        (_TESTS + "test_a_file_has_so_many_questions_and_mistakes_at_most",),
    ),
    Defence(
        "length of a line of a file of questions",
        _FILE,
        "file.readline(MAX_LINE + 1)",
        "file.readline()",
        (_LINES,),
    ),
    Defence(
        "length of the first line of a table",
        _TABLE,
        "first = text.readline(MAX_LINE)",
        "first = text.readline()",
        (_LINES,),
    ),
    Defence(
        "length of a line of a table",
        _TABLE,
        'iter(lambda: text.readline(MAX_LINE), "")',
        'iter(lambda: text.readline(), "")',
        (_LINES,),
    ),
    Defence(
        "lines before the first question",
        _FILE,
        "        elif len(held) == MAX_HELD:\n            break\n",
        "",
        (_TESTS + "test_a_file_of_another_form_is_recognised",),
    ),
    Defence(
        "length of a question by digest that is decoded",
        _DATA,
        "                if file.tell() - end > _BLOCK:\n",
        "                if False:\n",
        (_DATA_TESTS + "test_a_strangers_question_without_end_takes_little_memory",),
    ),
    Defence(
        "others' names in messages are printable",
        _ALLOWED,
        "text if text.isprintable() and len",
        "text if len",
        (_NAMES,),
    ),
    Defence("others' names in messages are short", _ALLOWED, " and len(text) <= _SHOWN else", " else", (_NAMES,)),
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
    Defence("length of a name in a manifest", _MANIFEST, '{0,63}", re.ASCII)', '*", re.ASCII)', (_INVALID,)),
    Defence(
        "no more of a manifest's file is read than it may have",
        _MANIFEST,
        "file.read(MAX_FILE_BYTES + 1)",
        "file.read()",
        ("tests/unit/tasks/test_manifest.py::test_files_that_cannot_be_read_are_an_error",),
    ),
    Defence(
        "a question that is too long for a rollout is an unknown task",
        "sapo_edge/tasks/source.py",
        "    except ValueError as error:\n        raise UnknownTaskError(",
        "    except ZeroDivisionError as error:\n        raise UnknownTaskError(",
        ("tests/unit/tasks/test_source.py::test_a_task_that_cannot_be_made_is_unknown",),
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
    Defence(
        "number and size of questions by digest",
        _DATA,
        "require(named and counted,",
        "require(named,",
        (_DATA_TESTS + "test_what_a_stranger_says_of_questions_is_bounded",),
    ),
    Defence(
        "questions by digest of all tasks together",
        _MANIFEST,
        "        fits = total[0] <= MAX_DATA_BYTES and total[1] <= MAX_DATA_QUESTIONS\n",
        "        fits = True\n",
        (_DATA_TESTS + "test_all_questions_of_a_manifest_together_have_the_bounds_of_one_file",),
    ),
    Defence(
        "questions by digest are those that the manifest names",
        _DATA,
        "        is_named = (count, digest.digest(), end) == (self.count, self.sha256, self.size)\n",
        "        is_named = True\n",
        (
            _DATA_TESTS + "test_a_strangers_file_is_valid_to_its_last_question",
            _DATA_TESTS + "test_a_damaged_file_is_never_mixed_with_another",
        ),
    ),
    Defence(
        "fetched questions are checked before they are kept",
        "sapo_edge/swarm/visits/fetch.py",
        "                await trio.to_thread.run_sync(data.verify, Path(file.name))\n",
        "",
        (
            "tests/swarm/member/test_libp2p.py::"
            "test_questions_named_by_digest_come_from_a_member_who_has_them_and_from_nobody_else",
        ),
    ),
    Defence(
        "each question by digest is valid",
        _DATA,
        "                OwnQuestion.from_list(record)\n\n\nclass",
        "                pass\n\n\nclass",
        (_DATA_TESTS + "test_a_strangers_file_is_valid_to_its_last_question",),
    ),
    Defence(
        "conclusions no longer than their premises",
        "sapo_edge/tasks/verifiers.py",
        '    if len(answer) > max(SHORT_FORMULA, sum(map(len, metadata["premises"]))):\n',
        "    if False:\n",
        ("tests/unit/tasks/test_verifiers.py::test_a_verifier_of_our_own_scores",),
    ),
    Defence("length of a text that is read", _READINGS, "completion[-MAX_ANSWER_CHARACTERS:]", "completion", (_READ,)),
    Defence(
        "text that can't be encoded is not read",
        _READINGS,
        '.encode("utf-8", "surrogatepass").decode("utf-8", "replace")',
        "",
        (_READ,),
    ),
    Defence("NUL is not read", _READINGS, '.replace("\\0", "\\N{REPLACEMENT CHARACTER}")', "", (_READ,)),
    Defence(
        "what stands behind a closing tag is not read",
        _READINGS,
        "_tail(said) if",
        "_tail(completion) if",
        (_READINGS_TESTS + "test_the_last_number_counts",),
    ),
    Defence(
        "an answer that is too long for a verifier is not read in part",
        _READINGS,
        "    if tagged is None and closed and OPEN_TAG in said:\n",
        "    if False:\n",
        (_READINGS_TESTS + "test_the_last_line_counts_or_what_it_marks",),
    ),
    Defence(
        "one answer of a sentence",
        _READINGS,
        "    return new[0] if len(new) == 1 else sentence\n",
        "    return new[0] if new else sentence\n",
        (_READINGS_TESTS + "test_a_sentence_gives_what_the_question_did_not_say",),
    ),
)
