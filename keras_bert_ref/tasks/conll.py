"""Named entities as in CoNLL-2003: the column files and the official score (paper, section 5.3)."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable

from keras_bert_ref.errors import InputError
from keras_bert_ref.tasks.text_files import numbered_lines

_BOUNDARY = "-DOCSTART-"
_TAG = re.compile(r"O|[BI]-(.+)")


@dataclasses.dataclass(frozen=True)
class Sentence:
    """A sentence and its entities.

    Attributes:
        words: strings.
        tags: a tag for each word, IOB2: "B-PER" where an entity begins, "I-PER" within it, "O"
            outside; None where they are not known.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None


def read(path):
    """Reads a file of the shared task: a word a line, its tag in the last of the columns.

    Columns are separated by spaces or tabs, sentences by blank lines, and documents by a line that
    begins with -DOCSTART-; a file without any is one document. Tags are IOB1, as the task has them,
    or IOB2; they become IOB2. A file of a single column has words alone, without tags.

    Args:
        path: a UTF-8 text file.

    Returns:
        A list of documents, each a list of `Sentence`.

    Raises:
        InputError: the file cannot be read, or a line is not as described.
    """
    columns = None
    documents, rows = [[]], []

    def finish_sentence():
        if rows:
            words, tags = zip(*rows, strict=True)
            documents[-1].append(Sentence(words, iob2(tags) if columns > 1 else None))
            rows.clear()

    for number, line in numbered_lines(path):
        fields = re.split("[ \t]+", line.strip(" \t\r"))
        if fields == [""]:
            finish_sentence()
        elif fields[0] == _BOUNDARY:
            finish_sentence()
            documents.append([])
        else:
            columns = columns or len(fields)
            if len(fields) == 1 < columns:
                raise InputError(
                    f"{path}, line {number}: {fields[0]!r} stands alone; a line has a word and, in "
                    "the last column, its tag"
                )
            if len(fields) != columns:
                raise InputError(
                    f"{path}, line {number}: {len(fields)} columns, where the lines before have "
                    f"{columns}"
                )
            if columns > 1 and not _TAG.fullmatch(fields[-1]):
                raise InputError(
                    f"{path}, line {number}: {fields[-1]!r} in the last column is no tag; tags "
                    "are O, B-… and I-…"
                )
            rows.append((fields[0], fields[-1]))
    finish_sentence()
    documents = [document for document in documents if document]
    if not documents:
        raise InputError(f"{path} holds no sentence")
    return documents


def iob2(tags):
    """Returns the tags of a sentence, IOB1 or IOB2, as IOB2.

    In IOB1 an entity begins with "B-…" only where another of its type ends, else with "I-…".

    Raises:
        InputError: a tag is of another scheme.
    """
    starts = {start for start, _, _ in entities(tags)}
    return tuple(f"B{tag[1:]}" if n in starts else tag for n, tag in enumerate(tags))


def entities(tags):
    """Returns the entities of a sentence, as the official scorer `conlleval` sees them.

    An entity begins at every "B-…", and at an "I-…" that does not continue an entity of its type;
    any sequence of tags, well-formed or not, has one reading.

    Args:
        tags: the tags of one sentence, IOB1 or IOB2.

    Returns:
        A list of (start, end, type): words start to end, exclusive, make up an entity.

    Raises:
        InputError: a tag is of another scheme.
    """
    found, start, kind = [], 0, None
    for n, tag in enumerate(tags):
        match = _TAG.fullmatch(tag)
        if not match:
            raise InputError(f"{tag!r} is no tag: tags are O, B-… and I-…")
        if kind and (tag[0] != "I" or match[1] != kind):
            found.append((start, n, kind))
            kind = None
        if match[1] and not kind:
            start, kind = n, match[1]
    if kind:
        found.append((start, len(tags), kind))
    return found


def score(gold, predicted):
    """Scores tags as the official `conlleval` does: an entity is right if words and type are.

    Args:
        gold: for each sentence its tags, IOB1 or IOB2.
        predicted: the same of what is to be scored.

    Returns:
        A dict of `precision`, `recall`, `f1` and, over words, `accuracy`, in percent and 0 where
        there is nothing to divide by; of the numbers of entities `gold`, `predicted` and `correct`
        and of `words`; and of `types`, for each type its `precision`, `recall`, `f1`, `gold`,
        `predicted` and `correct`.

    Raises:
        InputError: the two differ in sentences or in the length of one, or a tag is of another
            scheme.
    """
    gold, predicted = list(gold), list(predicted)
    if len(gold) != len(predicted):
        raise InputError(
            f"there are tags for {len(predicted):,} sentences, but there are {len(gold):,}"
        )
    counts = {name: Counter() for name in ("gold", "predicted", "correct")}
    words = right = 0
    for number, (true, guess) in enumerate(zip(gold, predicted, strict=True)):
        if len(true) != len(guess):
            raise InputError(
                f"sentence {number} (counted from 0) has {len(true)} tags, but {len(guess)} are "
                "predicted"
            )
        found = {"gold": set(entities(true)), "predicted": set(entities(guess))}
        found["correct"] = found["gold"] & found["predicted"]
        for name, spans in found.items():
            counts[name].update(kind for _, _, kind in spans)
        words += len(true)
        right += sum(map(str.__eq__, true, guess))
    kinds = sorted(counts["gold"] | counts["predicted"])
    return {
        **_ratios(**{name: counter.total() for name, counter in counts.items()}),
        "accuracy": _percent(right, words),
        "words": words,
        "types": {
            kind: _ratios(**{name: counter[kind] for name, counter in counts.items()})
            for kind in kinds
        },
    }


def _ratios(gold, predicted, correct):
    return {
        "precision": _percent(correct, predicted),
        "recall": _percent(correct, gold),
        "f1": _percent(2 * correct, gold + predicted),
        "gold": gold,
        "predicted": predicted,
        "correct": correct,
    }


def _percent(part, whole):
    return 100 * part / whole if whole else 0.0


def tag_names(documents: Iterable) -> tuple[str, ...]:
    """Returns the tags that documents use, sorted, with "O" first.

    Raises:
        InputError: a sentence has no tags.
    """
    used = set()
    for document in documents:
        for sentence in document:
            if sentence.tags is None:
                raise InputError(f"the sentence {' '.join(sentence.words)!r} has no tags")
            used.update(sentence.tags)
    return ("O", *sorted(used - {"O"}))
