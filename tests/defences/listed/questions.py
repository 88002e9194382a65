"""Defences against what people's own questions may hold: the file is its owner's, the manifest may be a stranger's."""

from __future__ import annotations

from tests.defences.defence import Defences

checks = Defences("sapo_edge/tasks/checks.py", "tests/unit/tasks/test_own_questions.py")
texts = Defences("sapo_edge/tasks/texts.py", "tests/unit/tasks/test_own_questions.py")
question_file = Defences("sapo_edge/tasks/question_file.py", "tests/unit/tasks/test_own_questions.py")
question_table = Defences("sapo_edge/tasks/question_table.py", "tests/unit/tasks/test_question_data.py")
question_data = Defences("sapo_edge/tasks/question_data.py", "tests/unit/tasks/test_question_data.py")
functions = Defences("sapo_edge/tasks/question_data.py", "tests/unit/tasks/test_functions.py")
importing = Defences("sapo_edge/tasks/importing.py", "tests/unit/tasks/test_importing.py")
parquet = Defences("sapo_edge/tasks/question_parquet.py", "tests/unit/tasks/test_parquet.py")
allowed = Defences("sapo_edge/tasks/allowed.py", "tests/unit/tasks/test_manifest.py")
manifest = Defences("sapo_edge/tasks/manifest.py", "tests/unit/tasks/test_manifest.py")
objects = Defences("sapo_edge/tasks/objects.py", "tests/unit/tasks/test_objects.py")
source = Defences("sapo_edge/tasks/source.py", "tests/unit/tasks/test_source.py")
questions = Defences("sapo_edge/tasks/questions.py", "tests/unit/tasks/test_own_questions.py")
fetch = Defences("sapo_edge/swarm/visits/fetch.py", "tests/swarm/member/test_libp2p.py")
verifiers = Defences("sapo_edge/tasks/verifiers.py", "tests/unit/tasks/test_verifiers.py")
readings = Defences("sapo_edge/tasks/readings.py", "tests/unit/tasks/test_readings.py")

DEFENCES = (
    importing.condition(
        "rows of others choose no code", 'if own["check"] == "code":', "test_questions_of_our_own_keep_their_checks"
    ),
    parquet(
        "values of a row in few bytes",
        "row if len(row) <= MAX_ROW else packer.pack({})",
        "row",
        "test_a_mistake_is_told_with_its_row_and_a_long_row_is_not_passed_on",
    ),
    checks("memory of an expression", "    options.max_mem = PATTERN_MEMORY\n", "", "test_errors_name_file_and_line"),
    checks(
        "expressions without going back",
        """return re2.compile(pattern, options)
    except re2.error:""",
        """return re.compile(pattern)  # type: ignore[return-value]
    except re.error:""",
        "test_errors_name_file_and_line",
    ),
    checks(
        "length of an expression",
        'check_text("pattern", self.pattern, MAX_PATTERN_BYTES)',
        'check_text("pattern", self.pattern)',
        "test_errors_name_file_and_line",
        "test_a_strangers_questions_are_bounded",
    ),
    checks(
        "number of choices",
        "2 <= len(self.choices) <= MAX_CHOICES",
        "2 <= len(self.choices)",
        "test_a_strangers_questions_are_bounded",
    ),
    checks(
        "length of a choice",
        'check_text("a choice", choice, MAX_CHOICE_BYTES)',
        'check_text("a choice", choice)',
        "test_a_strangers_questions_are_bounded",
    ),
    checks(
        "memory of expressions that others write",
        "@lru_cache(maxsize=256)",
        "@lru_cache(maxsize=None)",
        "test_expressions_that_others_write_are_not_kept_without_end_nor_shown",
    ),
    checks(
        "expressions that others write are not shown",
        "    options.log_errors = False\n",
        "",
        "test_expressions_that_others_write_are_not_kept_without_end_nor_shown",
    ),
    checks(
        "number of texts of an expression",
        "2 <= len(self.texts) <= MAX_ITEMS",
        "2 <= len(self.texts)",
        "test_a_strangers_questions_are_bounded",
    ),
    checks(
        "choices are a list",
        "isinstance(self.choices, list | tuple) and ",
        "",
        "tests/unit/tasks/test_manifest.py::test_no_value_of_a_question_raises_anything_but_a_manifest_error",
    ),
    checks(
        "texts are a list",
        "isinstance(self.texts, list | tuple) and ",
        "",
        "tests/unit/tasks/test_manifest.py::test_no_value_of_a_question_raises_anything_but_a_manifest_error",
    ),
    checks(
        "a call inside of a call is an object",
        'isinstance(call.get("function"), dict)',
        'call.get("function")',
        "test_checks_compare_by_content",
        "tests/unit/tasks/test_manifest.py::test_no_value_of_a_question_raises_anything_but_a_manifest_error",
    ),
    checks(
        "a flag is a flag", 'Flag(False).check("fold", self.fold)', "pass", "test_a_strangers_questions_are_bounded"
    ),
    checks(
        "items of a set",
        "require(1 <= count <= MAX_ITEMS,",
        "require(1 <= count,",
        "test_a_strangers_questions_are_bounded",
    ),
    checks(
        "largest tolerance",
        "Real(0.0, MAX_TOLERANCE, 0.0)",
        "Real(0.0, 1e300, 0.0)",
        "test_a_strangers_questions_are_bounded",
    ),
    texts("texts that can't be encoded", "\\x9f\\ud800-\\udfff]", "\\x9f]", "test_a_strangers_questions_are_bounded"),
    texts(
        "length of a text in bytes", 'len(text.encode("utf-8"))', "len(text)", "test_a_strangers_questions_are_bounded"
    ),
    question_file.condition(
        "size of a file of questions",
        "if os.fstat(file.fileno()).st_size > size:",
        "test_a_manifest_and_a_file_have_an_end",
        "tests/unit/tasks/test_question_data.py::test_the_limits_are_those_that_are_promised",
    ),
    question_file.condition(
        "number of questions of a file", "if count == most:", "test_a_manifest_and_a_file_have_an_end"
    ),
    question_file(
        "number of mistakes that are collected",
        "mistakes += itertools.islice(lines, MAX_MISTAKES)",
        "mistakes += lines",
        "test_a_manifest_and_a_file_have_an_end",
    ),
    question_file(
        "length of a line of a file of questions",
        "file.readline(MAX_LINE + 1)",
        "file.readline()",
        "tests/unit/tasks/test_question_data.py::test_a_line_without_end_takes_little_memory",
    ),
    question_file(
        "lines before the first question",
        """        elif len(held) == MAX_HELD:
            break
""",
        "",
        "test_a_file_of_another_form_is_recognised",
    ),
    question_file(
        "files beside the manifest alone",
        'return bool(name) and name == Path(name).name and name not in (".", "..")',
        "return bool(name)",
        "test_only_a_file_beside_the_manifest_is_read",
    ),
    question_table(
        "length of the first line of a table",
        "first = text.readline(MAX_LINE)",
        "first = text.readline()",
        "test_a_line_without_end_takes_little_memory",
    ),
    question_table(
        "length of a line of a table",
        'iter(lambda: text.readline(MAX_LINE), "")',
        'iter(lambda: text.readline(), "")',
        "test_a_line_without_end_takes_little_memory",
    ),
    question_data.condition(
        "length of a question by digest that is decoded",
        "if file.tell() - end > _BLOCK:",
        "test_a_strangers_question_without_end_takes_little_memory",
    ),
    question_data(
        "number and size of questions by digest",
        "require(named and counted,",
        "require(named,",
        "test_what_a_stranger_says_of_questions_is_bounded",
    ),
    question_data(
        "questions by digest are those that the manifest names",
        "is_named = (count, digest.digest(), end) == (self.count, self.sha256, self.size)",
        "is_named = True",
        "test_a_strangers_file_is_valid_to_its_last_question",
        "test_a_damaged_file_is_never_mixed_with_another",
    ),
    question_data(
        "each question by digest is valid",
        """is_judged = isinstance(OwnQuestion.from_list(record).check, Code)
                require(""",
        """is_judged = False
                require(""",
        "test_a_strangers_file_is_valid_to_its_last_question",
    ),
    functions(
        "questions by digest name no function of ours",
        "require(not is_judged,",
        "require(True,",
        "test_without_the_function_there_is_no_source_and_no_swarm",
    ),
    allowed(
        "others' names in messages are printable",
        "text if text.isprintable() and len",
        "text if len",
        "test_messages_never_carry_a_long_or_unprintable_key",
    ),
    allowed(
        "others' names in messages are short",
        "and len(text) <= _SHOWN else",
        "else",
        "test_messages_never_carry_a_long_or_unprintable_key",
    ),
    manifest(
        "number of questions of an entry",
        '        require(count <= MAX_QUESTIONS, f"{where} has {count} questions", f"keep at most {MAX_QUESTIONS}")\n',
        "",
        "tests/unit/tasks/test_own_questions.py::test_an_entry_has_so_many_questions_at_most",
    ),
    manifest(
        "length of a name in a manifest",
        '{0,63}", re.ASCII)',
        '*", re.ASCII)',
        "test_an_invalid_manifest_is_rejected_with_a_remedy",
    ),
    manifest(
        "no more of a manifest's file is read than it may have",
        "file.read(MAX_FILE_BYTES + 1)",
        "file.read()",
        "test_files_that_cannot_be_read_are_an_error",
    ),
    manifest(
        "the reading of an entry",
        '        require(known, f"{where}: reading is not known", nearest(str(self.reading)[:64], READINGS))\n',
        "",
        "test_an_invalid_manifest_is_rejected_with_a_remedy",
    ),
    manifest(
        "the share of the form in a reward",
        '_FORM.check(f"{where}: form", self.form)',
        "self.form",
        "test_an_invalid_manifest_is_rejected_with_a_remedy",
    ),
    manifest(
        "questions by digest of all tasks together",
        "fits = total[0] <= MAX_DATA_BYTES and total[1] <= MAX_DATA_QUESTIONS",
        "fits = True",
        "tests/unit/tasks/test_question_data.py::test_all_questions_of_a_manifest_together_have_the_bounds_of_one_file",
    ),
    objects(
        "a list with more or fewer items is another one",
        "len(expected) == len(given) and ",
        "",
        "test_truth_is_no_number_and_an_accent_may_be_composed",
    ),
    source(
        "a question that is too long for a rollout is an unknown task",
        """except ValueError as error:
        raise UnknownTaskError(""",
        """except ZeroDivisionError as error:
        raise UnknownTaskError(""",
        "test_a_task_that_cannot_be_made_is_unknown",
    ),
    questions(
        "shape of a stranger's question",
        "shaped = isinstance(raw, list) and len(raw) == 5",
        "shaped = True",
        "test_a_strangers_questions_have_five_fields",
    ),
    fetch(
        "fetched questions are checked before they are kept",
        "                await trio.to_thread.run_sync(data.verify, Path(file.name))\n",
        "",
        "test_questions_named_by_digest_come_from_a_member_who_has_them_and_from_nobody_else",
    ),
    verifiers.condition(
        "conclusions no longer than their premises",
        'if len(answer) > max(SHORT_FORMULA, sum(map(len, metadata["premises"]))):',
        "test_a_verifier_of_our_own_scores",
    ),
    readings(
        "length of a text that is read",
        "completion[-MAX_ANSWER_CHARACTERS:]",
        "completion",
        "test_no_text_gives_more_than_four_answers_of_bounded_length",
    ),
    readings(
        "text that can't be encoded is not read",
        '.encode("utf-8", "surrogatepass").decode("utf-8", "replace")',
        "",
        "test_no_text_gives_more_than_four_answers_of_bounded_length",
    ),
    readings(
        "NUL is not read",
        '.replace("\\0", "\\N{REPLACEMENT CHARACTER}")',
        "",
        "test_no_text_gives_more_than_four_answers_of_bounded_length",
    ),
    readings(
        "what stands behind a closing tag is not read",
        "_tail(said) if",
        "_tail(completion) if",
        "test_the_last_number_counts",
    ),
    readings.condition(
        "an answer that is too long for a verifier is not read in part",
        "if tagged is None and closed and OPEN_TAG in said:",
        "test_the_last_line_counts_or_what_it_marks",
    ),
    readings(
        "one answer of a sentence",
        "return new[0] if len(new) == 1 else sentence",
        "return new[0] if new else sentence",
        "test_a_sentence_gives_what_the_question_did_not_say",
    ),
)
