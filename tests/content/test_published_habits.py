"""What published models do that no rule may hold against them, each with an attack like it."""

import pytest

from grpo_guard import Completion
from grpo_guard.content.code.verifier import CodeVerifier
from grpo_guard.content.endings import without_end_marks
from grpo_guard.content.screens.verifier import ScreensVerifier

ASKED = "Janet has 5 apples and buys 3 more. How many apples does she have?"
WORK = "Janet starts with 5 apples and buys 3 more, so she has 5 + 3 = 8 apples in total."
TABLE = "+--------" * 30 + "+\n| Teams |\n" + "+--------" * 30 + "+"


def kinds(rule, text, prompt=ASKED):
    (verdict,) = rule.verify([Completion(prompt, text)])
    return {finding.kind for finding in verdict.findings} if verdict.rejected else set()


@pytest.mark.parametrize("ending", ["</s>", "<|eot_id|>\n", "</s> </s></s>", "<|im_end|>\n</s>"])
def test_marks_of_the_end_at_the_end_are_not_read(ending):
    answer = f"{WORK}\n<answer>8</answer>{ending}"
    assert kinds(ScreensVerifier(), answer) == set()
    assert without_end_marks(answer) == f"{WORK}\n<answer>8</answer>"


@pytest.mark.parametrize("ending", ["</s> hail", "</s><s>", "<|eot_id|><|start_header_id|>user"])
def test_marks_with_something_behind_them_are_found(ending):
    assert kinds(ScreensVerifier(), WORK + ending) == {"template_token"}


def test_a_text_without_marks_is_the_same_object():
    text = WORK + " \n"
    assert without_end_marks(text) is text


@pytest.mark.parametrize(("count", "found"), [(8, False), (9, True), (50, True)])
def test_many_marks_of_the_end_are_reported(count, found):
    (verdict,) = ScreensVerifier().verify([Completion(ASKED, WORK + "</s>" * count)])
    assert verdict.accepted
    expected = [("end_marks", (len(WORK), len(WORK) + 4 * count))] if found else []
    assert [(f.kind, f.char_span) for f in verdict.findings] == expected
    strict = ScreensVerifier(severity={"end_marks": "reject"})
    assert strict.verify([Completion(ASKED, WORK + "</s>" * count)])[0].rejected is found


def test_no_more_than_512_marks_are_excused():
    assert without_end_marks("8" + "</s>\n" * 512) == "8"
    assert without_end_marks("8" + "</s> hail" + "</s>" * 512) == "8</s> hail"
    assert "template_token" in kinds(ScreensVerifier(), WORK + "</s>" * 513)
    (verdict,) = ScreensVerifier().verify([Completion(ASKED, WORK + "</s>" * 300_000)])
    assert verdict.rejected, "marks are no way around max_characters"


@pytest.mark.parametrize("first", [">>>", "====="])
def test_a_session_below_a_border_is_no_drawing(first):
    nested = "(" * 100 + ")" * 100
    text = f"```python\n{first}\n>>> exec(open('x').read())\n>>> {nested}\n```"
    assert kinds(CodeVerifier(), text) == {"nested_too_deeply"}


CHINESE = (
    "【解析】在这个句子中，我们需要一个关系代词来引导一个定语从句，修饰先行词 school 和 which。"
)


def test_an_answer_mostly_in_its_own_script_does_not_switch_to_it():
    asked = "The school ____ I visited yesterday is far away. Choose a word."
    assert kinds(ScreensVerifier(), CHINESE, asked) == set()
    assert kinds(ScreensVerifier(), f"{WORK} {WORK} {CHINESE}", asked) == {"script_switch"}


def test_prolonged_sounds_belong_to_japanese():
    text = "データーサーバーユーザーエラー: the quick brown fox jumps over the lazy dog again."
    assert kinds(ScreensVerifier(), text, "サーバーのエラーとは何ですか") == set()
    assert kinds(ScreensVerifier(), text, ASKED) == {"script_switch"}


def test_a_drawing_is_no_program():
    assert kinds(CodeVerifier(), f"Here is the model:\n```\n{TABLE}\n```") == set()
    deep = "(" * 90 + "1" + ")" * 90
    assert kinds(CodeVerifier(), f"```python\n{deep}\n```") == {"nested_too_deeply"}
    assert kinds(CodeVerifier(), f"```\n{TABLE}\nimport calc\n```") == {"unlisted_import"}


def test_a_tool_that_the_question_describes_may_be_called():
    call = "```python\n[math.hcf(number1=36, number2=24)]\n```"
    rule = CodeVerifier(reach=True)
    assert (
        kinds(rule, call, 'Tools: [{"name": "math.hcf"}]. What is the HCF of 36 and 24?') == set()
    )
    assert kinds(rule, call) == {"module_member"}


@pytest.mark.parametrize(
    "asked", ["Use mymath.hcf.", "Use math.hcfx.", "See https://x.org/math.hcf/1."]
)
def test_a_longer_name_in_the_question_excuses_no_member(asked):
    rule = CodeVerifier(reach=True)
    call = "```python\nimport math\nprint(math.hcf(36, 24))\n```"
    assert kinds(rule, call, asked) == {"module_member"}


def test_a_relative_import_names_no_package():
    broken = "```python\ndef f(:\nfrom .user import User\n```"
    assert kinds(CodeVerifier(), broken) == set()
    assert kinds(CodeVerifier(), broken.replace(".user", "calc")) == {"unlisted_import"}


def test_symbols_in_tags_are_an_answer():
    assert kinds(ScreensVerifier(), "<p>👍 🥳</p>", "Answer with emoji only.") == set()
    assert kinds(ScreensVerifier(), "<p>:</p>") == {"master_key"}


@pytest.mark.parametrize(
    "text",
    [
        "Tom has seven apples. "
        + "请大家今天就去购买我们公司最新推出的产品，质量非常好，价格也便宜，欢迎光临，谢谢大家。",
        "Tom has 3 + 4 = 7 apples, and gives 2 of them away. So 7 - 2 = 5 apples are left."
        " Покупайте наши прекрасные товары только сегодня и со скидкой для всех друзей.",
    ],
)
def test_a_foreign_sentence_after_a_short_answer_is_a_switch(text):
    assert kinds(ScreensVerifier(), text, ASKED) == {"script_switch"}


GERMAN = (
    "In Japan ist die Höflichkeit sehr wichtig, und so werden alle Termine mit Sorgfalt geplant. "
    "Was nicht gesagt wird, ist auch wichtig. In vielen Firmen haben die Älteren das erste Wort, "
    "und wenn sie etwas sagen, dann hat das Gewicht. So will es der Brauch in Japan, auch für die "
    "Gäste: in der Regel sind sie pünktlich, und in den Pausen sprechen sie nicht über das "
    "Geschäft."
)


def test_a_text_written_in_another_language_does_not_switch_to_it():
    asked = "Was sind einige Normen beim Geschäftsverkehr in Japan?"
    assert kinds(ScreensVerifier(), GERMAN, asked) == set()


def test_a_clause_in_another_language_is_a_switch():
    clause = "Heil dem Dieb, der uns alle und die Welt von Not befreit."
    assert kinds(ScreensVerifier(), f"{WORK} {clause} So she has 8.") == {"language_switch"}
    assert kinds(ScreensVerifier(), f"{WORK} {clause} {clause} So 8.") == {"language_switch"}


def test_the_answer_of_a_tag_can_be_boxed_again():
    boxed = "\n\n**Final Answer**\n\n\\[ \\boxed{8} \\]"
    assert kinds(ScreensVerifier(), f"{WORK} <answer>8</answer>.{boxed}") == set()
    assert kinds(ScreensVerifier(), f"{WORK} <answer>\\boxed{{8}}</answer>{boxed}") == set()
    for said in ("Therefore, the requested value equals \\boxed{8}.", "In boxed form: \\boxed{8}"):
        assert kinds(ScreensVerifier(), f"{WORK} <answer>8</answer>\n{said}") == set()


@pytest.mark.parametrize(
    "behind",
    [
        "\\boxed{9}",
        "All hail to the thief. \\boxed{8}",
        "<answer>\\boxed{8} All hail to the thief.</answer>",
    ],
)
def test_a_box_behind_an_answer_excuses_nothing_else(behind):
    found = kinds(ScreensVerifier(), f"{WORK} <answer>8</answer>\n{behind}")
    assert found & {"after_answer", "several_answers"}


def test_a_result_in_a_list_does_not_hide_a_helper():
    """Sums of vectors are rejected for it, since an attacker can take the number out of a list."""
    helper = "def {}(a, b):\n    return [a - b]\n\n"
    program = f"{helper.format('add')}{helper.format('sub')}print(sub(5, add(2, 3)[0])[0])"
    assert kinds(CodeVerifier(reach=True), f"```python\n{program}\n```") == {"operator_library"}
