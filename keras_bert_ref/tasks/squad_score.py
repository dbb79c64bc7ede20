"""The scores of SQuAD, counted as the official scripts count them (evaluate-v1.1 and -v2.0)."""

import re
import string
from collections import Counter
from pathlib import Path

from keras_bert_ref.errors import InputError, InputWarning
from keras_bert_ref.tasks.squad_files import entries, list_of, load_json, text_of

_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)  # of ASCII only

# The official script's default: with null odds, what is above counts as "no answer".
OFFICIAL_THRESHOLD = 1.0


def score(dataset_json, predictions_json, null_odds=None):
    """Scores predictions as the official scripts do.

    A data set of version 2.0, or with `is_impossible`, is scored as 2.0, any other as 1.1. In 1.1 a
    question without a prediction scores 0, with a warning; in 2.0, whose script stops there, it is
    an error.

    Args:
        dataset_json: the data set, a path or the object that the file holds.
        predictions_json: the same of the predictions, id → text.
        null_odds: the same of the null odds of 2.0, id → number, or None. With them, as in the
            official script without further options, odds above 1 count as "no answer".

    Returns:
        See `squad_score.score_answers` and `squad_score.score_with_null`.

    Raises:
        InputError: a file cannot be read, or lacks something; the message names the place.
    """
    name = dataset_json if isinstance(dataset_json, str | Path) else "the data set"
    gold, with_null = _gold(load_json(dataset_json), name)
    answers = _by_id(predictions_json, "the predictions", str, "a text")
    absent = [key for key in gold if key not in answers]
    missing = (
        f"{len(absent):,} of {len(gold):,} questions have no prediction ({', '.join(absent[:1])})"
    )
    if not with_null:
        if null_odds is not None:
            raise InputError(f"{name} is not of SQuAD 2.0: null_odds mean nothing")
        if absent:
            InputWarning.issue(f"{missing}: they score 0")
        return score_answers(list(gold.values()), [answers.get(key) for key in gold])
    if absent:
        raise InputError(f"{missing}: they cannot be scored")
    if null_odds is None:
        return score_with_null(list(gold.values()), [answers[key] for key in gold])
    odds = _by_id(null_odds, "the null odds", int | float, "a number")
    absent = [key for key in gold if key not in odds]
    if absent:
        raise InputError(f"{len(absent):,} of {len(gold):,} questions have no null odds")
    keys = [key for key in odds if key in gold]  # their order decides ties
    columns = ([table[key] for key in keys] for table in (gold, answers, odds))
    return score_with_null(*columns)


def _gold(dataset, name):
    """Returns the right answers of each question, by its id, and whether there may be none."""
    gold, with_null = {}, isinstance(dataset, dict) and dataset.get("version") in ("v2.0", "2.0")
    for place, _, _, entry in entries(dataset, name):
        found = [text_of(one, "text", place) for one in list_of(entry, "answers", place)]
        with_null = with_null or "is_impossible" in entry
        if not found and not with_null:
            raise InputError(f"{place} has no answer to compare with")
        gold[entry["id"]] = found
    if not gold:
        raise InputError(f"{name} holds no question")
    return gold, with_null


def _by_id(source, name, kind, said):
    """Returns a dict of id → value, checked, from a path or the dict itself."""
    found = load_json(source)
    name = source if isinstance(source, str | Path) else name
    if not isinstance(found, dict):
        raise InputError(f"{name}: {type(found).__name__} where an object of id → {said} should be")
    for key, value in found.items():
        if not isinstance(value, kind) or isinstance(value, bool) or value != value:
            raise InputError(f"{name}: {key!r} has {value!r}, which is not {said}")
    return found


def normalize(text):
    """Returns a text as it is compared: without case, punctuation, articles and extra spaces."""
    text = text.lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLE.sub(" ", text).split())


def score_answers(gold, answers):
    """Scores answers to questions that all have one (SQuAD 1.1).

    Args:
        gold: for each question the texts of its right answers, one at least.
        answers: for each question a text; None where there is none, which scores 0.

    Returns:
        `exact` and `f1`, in percent, and `total`, the number of questions.
    """
    return _means([_best(*pair, empty_is_right=False) for pair in zip(gold, answers, strict=True)])


def score_with_null(gold, answers, null_odds=None, threshold=OFFICIAL_THRESHOLD):
    """Scores answers to questions some of which have none (SQuAD 2.0).

    Args:
        gold: for each question the texts of its right answers, none where it is impossible.
        answers: for each question a text, "" for "no answer".
        null_odds: for each question how much more likely "no answer" is than the answer, on any
            scale; None to take the answers as they are.
        threshold: null odds above it turn an answer into "no answer".

    Returns:
        `exact`, `f1` and `total`; the same of the questions that have an answer (`HasAns_…`) and of
        those that have none (`NoAns_…`), if there are any. With `null_odds` also the best that a
        threshold can reach, `best_exact` and `best_f1`, and where: `best_exact_thresh` and
        `best_f1_thresh`. Scores are in percent.
    """
    pairs = [
        # A right answer of which nothing is left, such as "The", does not count.
        _best([text for text in texts if normalize(text)] or [""], answer, empty_is_right=True)
        for texts, answer in zip(gold, answers, strict=True)
    ]
    has_answer = [bool(texts) for texts in gold]
    final = pairs
    if null_odds is not None:
        final = [
            (float(not has), float(not has)) if odds > threshold else pair
            for pair, has, odds in zip(pairs, has_answer, null_odds, strict=True)
        ]
    found = _means(final)
    for name, wanted in (("HasAns", True), ("NoAns", False)):
        group = [pair for pair, has in zip(final, has_answer, strict=True) if has == wanted]
        if group:
            found |= {f"{name}_{key}": value for key, value in _means(group).items()}
    if null_odds is not None:
        for n, name in enumerate(("exact", "f1")):
            values = [pair[n] for pair in pairs]
            best = _best_threshold(values, has_answer, answers, null_odds)
            found[f"best_{name}"], found[f"best_{name}_thresh"] = best
    return found


def _best(texts, answer, empty_is_right):
    """Returns the highest exact match and the highest F1, 0 to 1, over the right answers."""
    if answer is None:
        return 0.0, 0.0
    answer = normalize(answer)
    texts = [normalize(text) for text in texts]
    words = answer.split()
    return float(answer in texts), max(_f1(text.split(), words, empty_is_right) for text in texts)


def _f1(gold, words, empty_is_right):
    if not (gold and words):
        return float(empty_is_right and gold == words)
    same = (Counter(gold) & Counter(words)).total()
    if not same:
        return 0.0
    precision, recall = same / len(words), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def _means(pairs):
    exact, f1 = (100 * sum(values) / len(pairs) for values in zip(*pairs, strict=True))
    return {"exact": exact, "f1": f1, "total": len(pairs)}


def _best_threshold(values, has_answer, answers, null_odds):
    """Returns the best mean score, in percent, and the null odds up to which answers are given.

    As in the official script, the threshold is 0 where no answer at all is best.
    """
    score = best = len(has_answer) - sum(has_answer)  # of "no answer" to all
    threshold = 0.0
    for n in sorted(range(len(null_odds)), key=null_odds.__getitem__):
        if has_answer[n]:
            score += values[n]
        elif answers[n]:
            score -= 1
        if score > best:
            best, threshold = score, null_odds[n]
    return 100 * best / len(values), threshold
