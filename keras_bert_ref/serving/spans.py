"""A span labeler's answer for texts: found in the graph as `tasks.squad` finds it."""

from typing import NamedTuple

from keras_bert_ref._tensorflow import tf
from keras_bert_ref.serving.inputs import in_chunks
from keras_bert_ref.serving.rows import Block, numbered, rows_of, valid_text
from keras_bert_ref.sliding import LENGTH_COUNTS
from keras_bert_ref.tasks.squad_answers import NO_RIVAL

_SPECIALS = 3  # [CLS] question [SEP] context [SEP]


class _Windows(NamedTuple):
    """Windows over contexts; W of them, a row each.

    Attributes:
        questions: int64 [W], the question of each, in order.
        begins: int64 [W], where its pieces begin among those of all contexts.
        places: int64 [W, S], the place in the window of each column.
        inside: bool [W, S], whether it is in the window.
        owned: bool [W, S], whether an answer may start there.
    """

    questions: tf.Tensor
    begins: tf.Tensor
    places: tf.Tensor
    inside: tf.Tensor
    owned: tf.Tensor


class _Found(NamedTuple):
    """The best candidate of each question; [Q].

    Attributes:
        scores: float64, minus infinity where there is none.
        firsts, lasts: int64, its pieces among those of all contexts.
    """

    scores: tf.Tensor
    firsts: tf.Tensor
    lasts: tf.Tensor


def answers(questions, contexts, tokenizer, text_layer, task, compute):
    """Answers questions about contexts.

    Args:
        questions, contexts: strings [Q].
        tokenizer: a WordPieceTokenizer.
        text_layer: its `TextLayer`.
        task: the `Squad` task.
        compute: a `Computation` of "start_logits" and "end_logits" [B, S].

    Returns:
        `answer`, strings [Q]; `start` and `end`, int32 [Q], its characters in the context, -1 where
        there is none; `score`, float32 [Q], the sum of the logits of the best answer, given or not.
        If the task has questions without one, `null_odds`, float32 [Q], the score of "no answer"
        minus `score`.
    """
    contexts = valid_text(contexts)
    asked, read = text_layer.tokenize(questions)["ids"], text_layer.tokenize(contexts)
    same = tf.debugging.Assert(
        tf.equal(tf.size(questions), tf.size(contexts)),
        ["each question needs a context:", tf.size(questions), tf.size(contexts)],
    )
    with tf.control_dependencies([same]):
        features, windows = _windows(asked, read["ids"], tokenizer, task)
    computed = in_chunks(compute, features)
    logits = [computed["start_logits"], computed["end_logits"]]
    real = features["input_mask"] > 0
    count = tf.size(questions, tf.int64)

    found = _best(logits, real, windows, count, task, task.n_best)
    searched = tf.math.segment_sum(
        tf.reduce_sum(tf.cast(windows.inside, tf.int32), 1), windows.questions
    )
    found = tf.cond(
        tf.reduce_all((searched == 0) | tf.math.is_finite(found.scores)),
        lambda: found,
        lambda: _first_of(found, _best(logits, real, windows, count, task, None)),
    )
    exists = tf.math.is_finite(found.scores)
    odds = tf.fill([count], tf.constant(NO_RIVAL, tf.float64))
    answered = exists
    if task.null:
        first = [tf.cast(side[:, 0], tf.float64) for side in logits]
        null = tf.math.segment_min(first[0] + first[1], windows.questions)
        odds = tf.where(exists, null - found.scores, odds)
        answered &= odds <= task.null_threshold

    starts = _characters(_not_back(read["starts"].values, read["ids"], -1), found.firsts)
    ends = _characters(_not_back(read["ends"].values, read["ids"], 1), found.lasts)
    starts, ends = tf.where(answered, starts, 0), tf.where(answered, ends, 0)
    answer = {
        "answer": tf.strings.substr(contexts, starts, ends - starts, unit="UTF8_CHAR"),
        "start": tf.where(answered, starts, -1),
        "end": tf.where(answered, ends, -1),
        "score": tf.cast(tf.where(exists, found.scores, 0), tf.float32),
    }
    if task.null:
        answer["null_odds"] = tf.cast(odds, tf.float32)
    return answer


def _windows(questions, contexts, tokenizer, task):
    """Returns the features of all windows, and the `_Windows`; see `sliding`.

    Args:
        questions, contexts: ids of pieces, ragged [Q, pieces].
    """
    asked = tf.minimum(questions.row_lengths(), task.max_query_length)
    lengths = contexts.row_lengths()
    room = task.max_length - asked - _SPECIALS
    stride = task.doc_stride
    counts = 1 + (tf.maximum(lengths - room, 0) + stride - 1) // stride
    question, number = numbered(counts)
    begins = number * stride
    sizes = tf.minimum(tf.gather(room, question), tf.gather(lengths, question) - begins)
    begins += tf.gather(contexts.row_starts(), question)
    blocks = [
        Block(questions.values, *(tf.gather(x, question) for x in (questions.row_starts(), asked))),
        Block(contexts.values, begins, sizes),
    ]
    features, (_, (places, inside)) = rows_of(blocks, tokenizer)
    pieces = tf.size(contexts.values, tf.int64)
    owned = _owned(begins, sizes, places, inside, pieces)
    return features, _Windows(question, begins, places, inside, owned)


def _owned(begins, sizes, places, inside, pieces):
    """Returns whether a window is the first of those where a piece has most context."""
    sizes = sizes[:, tf.newaxis]
    context = tf.cast(tf.minimum(places, sizes - 1 - places), tf.float64)
    context += LENGTH_COUNTS * tf.cast(sizes, tf.float64)
    piece = tf.where(inside, begins[:, tf.newaxis] + places, pieces)  # `pieces`: none
    best = tf.math.unsorted_segment_max(context, piece, pieces + 1)
    number = tf.range(tf.size(begins, tf.int64))[:, tf.newaxis] + tf.zeros_like(piece)
    most = inside & tf.equal(context, tf.gather(best, piece))
    owner = tf.math.unsorted_segment_min(tf.where(most, number, tf.int64.max), piece, pieces + 1)
    return most & tf.equal(number, tf.gather(owner, piece))


def _best(logits, real, windows, count, task, n_best):
    """Returns the `_Found` among the best starts and ends of each window; of all of them for None.

    Of candidates with the same score the first is better, as in `squad_answers`.
    """
    columns = tf.shape(real)[1]
    n_best = columns if n_best is None else tf.minimum(n_best, columns)
    lowest = tf.constant(float("-inf"))
    (starts, start_at), (ends, end_at) = (
        tf.math.top_k(tf.where(real, side, lowest), n_best) for side in logits
    )
    length = end_at[:, tf.newaxis, :] - start_at[:, :, tf.newaxis] + 1
    possible = (
        tf.gather(windows.owned, start_at, batch_dims=1)[:, :, tf.newaxis]
        & tf.gather(windows.inside, end_at, batch_dims=1)[:, tf.newaxis, :]
        & (length > 0)
        & (length <= task.max_answer_length)
    )
    starts, ends = tf.cast(starts, tf.float64), tf.cast(ends, tf.float64)
    scores = starts[:, :, tf.newaxis] + ends[:, tf.newaxis, :]
    scores = tf.where(possible, scores, tf.constant(float("-inf"), tf.float64))
    scores = tf.reshape(scores, [-1, n_best * n_best])
    scores, best = tf.math.top_k(scores, 1)
    scores, best = scores[:, 0], best[:, 0]

    highest = tf.math.segment_max(scores, windows.questions)
    number = tf.range(tf.size(scores, tf.int64))
    chosen = tf.equal(scores, tf.gather(highest, windows.questions))
    window = tf.math.segment_min(tf.where(chosen, number, tf.int64.max), windows.questions)
    best = tf.gather(best, window)

    def piece(at, place):
        column = tf.gather_nd(at, tf.stack([window, tf.cast(place, tf.int64)], 1))
        place = tf.gather_nd(windows.places, tf.stack([window, tf.cast(column, tf.int64)], 1))
        return tf.gather(windows.begins, window) + place

    return _Found(highest, piece(start_at, best // n_best), piece(end_at, best % n_best))


def _first_of(found, others):
    """Returns what was found, or where there is nothing, the others."""
    exists = tf.math.is_finite(found.scores)
    return _Found(*(tf.where(exists, *pair) for pair in zip(found, others, strict=True)))


def _characters(places, pieces):
    """Returns the places in the text of some pieces, which need not be any."""
    places = tf.concat([places, [0]], 0)
    return tf.gather(places, tf.clip_by_value(pieces, 0, tf.size(places, tf.int64) - 1))


def _not_back(places, pieces, direction):
    """Returns places, int32 [P], that do not go back from one piece of a text to the next.

    Marks that change places when they are normalised can make them.

    Args:
        places: of the pieces of all texts.
        pieces: ragged [Q, pieces], whose they are.
        direction: 1 to move those forward that are behind one before; -1 to move those back that
            are before one behind.
    """
    rows = pieces.value_rowids()
    # All of a text lie beyond all of the text before.
    far = tf.cast(places, tf.int64) + rows * tf.cast(tf.int32.max, tf.int64)

    def moved():
        # The greatest so far, doubling how far back is looked; or the least from here on.
        ordered = far if direction > 0 else -far[::-1]

        def step(reach, values):
            return reach * 2, tf.concat(
                [values[:reach], tf.maximum(values[reach:], values[:-reach])], 0
            )

        _, greatest = tf.while_loop(
            lambda reach, values: reach < tf.size(values),
            step,
            [1, ordered],
            shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])],
        )
        greatest = greatest if direction > 0 else -greatest[::-1]
        return tf.cast(greatest - rows * tf.cast(tf.int32.max, tf.int64), tf.int32)

    return tf.cond(tf.reduce_all(far[1:] >= far[:-1]), lambda: places, moved)
