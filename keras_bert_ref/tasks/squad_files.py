"""SQuAD's official JSON, 1.1 and 2.0, and other data sets in the same form."""

import dataclasses
import json
import re
from pathlib import Path

from keras_bert_ref.errors import InputError, InputWarning
from keras_bert_ref.files import first_line


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """A question about a text.

    Attributes:
        id: a string; empty where there is none.
        question: a string.
        context: the text that the answer is looked for in.
        answers: right answers, each (text, start), where `start` is a place in characters.
        impossible: whether the text has no answer; None where that is not said.
        title: of the article, or None.
    """

    id: str
    question: str
    context: str
    answers: tuple = ()
    impossible: bool | None = None
    title: str | None = None

    def answer_span(self):
        """Returns the characters (start, end) of the first answer, or None if it is not there.

        Official files have answers that differ in white space from the text, or that stand a
        little beside the place that is said. The nearest place is taken.
        """
        text, start = self.answers[0]
        if self.context.startswith(text, start) and text.strip():
            return start, start + len(text)
        words = text.split()
        if not words:
            return None
        pattern = r"\s+".join(map(re.escape, words))
        found = [match.span(1) for match in re.finditer(f"(?=({pattern}))", self.context)]
        return min(found, key=lambda span: abs(span[0] - start), default=None)


def read_questions(path, training, null):
    """Returns the `Question`s of a file.

    Args:
        path: a JSON file.
        training: whether they are to be trained on; see `trainable`.
        null: whether there may be questions without an answer.

    Raises:
        InputError: the file has another form, or an id comes twice; the message names the place.
    """
    found = list(_questions(path))
    if not found:
        raise InputError(f"{path} holds no question")
    if training:
        return trainable(found, path, null)
    seen = set()
    for place, question in found:
        if question.id in seen:
            raise InputError(f"{place}: another question has this id")
        seen.add(question.id)
    return [question for _, question in found]


def _questions(path):
    for place, article, paragraph, entry in entries(load_json(path), path):
        yield (
            place,
            make_question(
                place,
                id=text_of(entry, "id", place),
                question=text_of(entry, "question", place),
                context=text_of(paragraph, "context", f"{place}, its paragraph"),
                answers=_answers_of(entry, place),
                impossible=entry.get("is_impossible"),
                title=article.get("title"),
            ),
        )


def trainable(found, name, null):
    """Returns the questions that a model can learn from.

    Args:
        found: an iterable of (place, `Question`).
        name: of the file, for the warning that answers of some are not in the text.
        null: whether there may be questions without an answer.

    Raises:
        InputError: an answer is not known.
    """
    questions, lost = [], 0
    for place, question in found:
        check_trainable(question, null, place)
        if question.impossible or question.answer_span():
            questions.append(question)
        else:
            lost += 1
    if lost:
        InputWarning.issue(
            f"{name}: {lost:,} questions passed over, as their answers are not in the text"
        )
    return questions


def make_question(place, *, id, question, context, answers=(), impossible=None, title=None):
    """Returns a `Question`, checked.

    Args:
        place: where it comes from, for messages.
        answers: (text, start) of each.
        id, question, context, impossible, title: see `Question`.

    Raises:
        InputError: something is wrong with it.
    """
    if not context.strip():
        raise InputError(f"{place}: the context is empty")
    if impossible not in (None, True, False):
        raise InputError(f"{place}: is_impossible must be true or false, not {impossible!r}")
    if impossible and answers:
        raise InputError(f"{place}: the question is_impossible, but has answers")
    for text, start in answers:
        if not 0 <= start < len(context):
            raise InputError(
                f"{place}: answer_start {start} of {text!r} is outside the context of "
                f"{len(context):,} characters"
            )
    known = None if impossible is None else bool(impossible)
    return Question(id, question, context, tuple(answers), known, title)


def check_trainable(question, null, place):
    """Raises InputError if a model cannot learn from a question."""
    if question.impossible and not null:
        raise InputError(f"{place}: the question is impossible; squad-2.0 is the task for such")
    if not question.impossible and not question.answers:
        raise InputError(f"{place}: the question has no answer, so that it cannot be trained on")


def load_json(source):
    """Returns what a JSON file holds, or `source` itself if it is no path.

    Raises:
        InputError: it cannot be read.
    """
    if not isinstance(source, str | Path):
        return source
    try:
        return json.loads(Path(source).read_bytes())
    except OSError as error:
        raise InputError(f"{source} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source} is no JSON: {first_line(error)}") from None


def entries(dataset, name):
    """Yields (place, article, paragraph, question), dicts, for the questions of official JSON.

    Args:
        dataset: the object that a file holds.
        name: of the file, for messages.

    Raises:
        InputError: it has another form; the message names the place.
    """
    for a, article in enumerate(list_of(dataset, "data", name)):
        place = f"{name}, data[{a}]"
        for p, paragraph in enumerate(list_of(article, "paragraphs", place)):
            at = f"{place}.paragraphs[{p}]"
            for q, question in enumerate(list_of(paragraph, "qas", at)):
                here = f"{at}.qas[{q}]"
                yield f"{here} (id {text_of(question, 'id', here)})", article, paragraph, question


def list_of(holder, key, place):
    """Returns the list that a dict holds under a key; raises InputError if it does not."""
    return _value_of(holder, key, place, list, "a list")


def text_of(holder, key, place):
    """Returns the string that a dict holds under a key; raises InputError if it does not."""
    return _value_of(holder, key, place, str, "a string")


def _value_of(holder, key, place, kind, said):
    if not isinstance(holder, dict):
        raise InputError(f"{place}: {type(holder).__name__} where an object with {key!r} should be")
    if key not in holder:
        raise InputError(f"{place} has no {key!r}")
    value = holder[key]
    if not isinstance(value, kind) or isinstance(value, bool):
        raise InputError(f"{place}: {key!r} must be {said}, not {type(value).__name__}")
    return value


def _answers_of(entry, place):
    if "answers" not in entry:
        return ()
    return [
        (text_of(one, "text", at), _value_of(one, "answer_start", at, int, "a whole number"))
        for n, one in enumerate(list_of(entry, "answers", place))
        for at in [f"{place}, answer {n}"]
    ]
