"""From the logits of a question's windows to its answers."""

import dataclasses

import numpy as np

from keras_bert_ref.tasks.classification import probabilities

# The null odds where a context has no piece that could be an answer.
NO_RIVAL = 1e6


@dataclasses.dataclass(frozen=True)
class Answers:
    """The answers to a question that are most likely.

    Attributes:
        nbest: dicts of `text`, `probability` (among these), `start_logit` and `end_logit`, the most
            likely first; no text comes twice. "" is "no answer".
        spans: for each the (start, end) of its characters in the context, or None.
        null_odds: the score of "no answer" minus that of the best answer; None if it is none of the
            possible answers.
    """

    nbest: list
    spans: list
    null_odds: float | None

    def best(self, null):
        """Returns the index of the answer "", or of the best other one.

        Args:
            null: whether "" is wanted. If the only answer is of the other kind, it is that.
        """
        wanted = (n for n, one in enumerate(self.nbest) if (one["text"] == "") == null)
        return next(wanted, 0)


def decode(context, windows, outputs, *, n_best, max_answer_length, null):
    """Returns the `Answers` that logits stand for.

    Answers are spans between the best starts and the best ends of each window.

    Args:
        context: the text.
        windows: a list of `squad_windows.Window`.
        outputs: for each window `start_logits` and `end_logits`, float [S].
        n_best: how many starts, ends and answers are considered.
        max_answer_length: the most pieces of an answer.
        null: whether "" is a possible answer; its score is that of [CLS], in the window where that
            is lowest.
    """
    logits = [
        np.stack([np.asarray(one[f"{side}_logits"], np.float64) for side in ("start", "end")])
        for one in outputs
    ]
    scores, spans = _candidates(windows, logits, n_best, max_answer_length)
    if not len(spans):  # the best are no answers: consider all
        scores, spans = _candidates(windows, logits, None, max_answer_length)
    odds, always = None, ()
    if null:
        null_logits = min((one[:, 0] for one in logits), key=sum)
        odds = float(null_logits.sum() - scores[0].sum()) if len(spans) else NO_RIVAL
        # It comes after answers of the same score.
        place = np.searchsorted(-scores.sum(1), -null_logits.sum(), side="right")
        scores = np.insert(scores, place, null_logits, axis=0)
        spans = np.insert(spans, place, 0, axis=0)
        always = (place, 0 if place else 1)[: len(spans)]
    elif not len(spans):
        scores, spans = np.zeros((1, 2)), np.zeros((1, 2), int)
    return _distinct(context, scores, spans, n_best, always, odds)


def _candidates(windows, logits, n_best, longest):
    """Returns the logits [C, 2] and the characters [C, 2] of possible answers, the best first."""
    parts = [
        _candidates_of(window, one, n_best, longest)
        for window, one in zip(windows, logits, strict=True)
    ]
    scores, spans = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    order = np.argsort(-scores.sum(1), kind="stable")
    return scores[order], spans[order]


def _candidates_of(window, logits, n_best, longest):
    # As in the original, the best are looked for in the whole row; of ties the first is better.
    starts, ends = np.argsort(-logits, axis=1, kind="stable")[:, :n_best] - window.first
    size = len(window.spans)
    starts = starts[(starts >= 0) & (starts < size)]
    starts = starts[window.owned[starts]]
    ends = ends[(ends >= 0) & (ends < size)]
    length = ends - starts[:, None] + 1
    rows, columns = np.nonzero((length > 0) & (length <= longest))
    starts, ends = starts[rows], ends[columns]
    scores = np.stack([logits[0, starts + window.first], logits[1, ends + window.first]], axis=1)
    return scores, np.stack([window.spans[starts, 0], window.spans[ends, 1]], axis=1)


def _distinct(context, scores, spans, n_best, always, odds):
    """Returns `Answers` with the first `n_best` candidates that differ in text, and some others."""
    texts = [context[start:end] for start, end in spans.tolist()]
    chosen = {}  # text → index of the candidate
    for n, text in enumerate(texts):
        if len(chosen) == n_best:
            break
        chosen.setdefault(text, n)
    for n in always:
        chosen.setdefault(texts[n], n)
    indices = list(chosen.values())
    scores, spans = scores[indices], spans[indices].tolist()
    shares = probabilities(scores.sum(1)).tolist()
    nbest = [
        {"text": text, "probability": share, "start_logit": start, "end_logit": end}
        for text, share, (start, end) in zip(chosen, shares, scores.tolist(), strict=True)
    ]
    places = [tuple(span) if text else None for text, span in zip(chosen, spans, strict=True)]
    return Answers(nbest, places, odds)
