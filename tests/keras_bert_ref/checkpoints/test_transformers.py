"""Our Hugging Face exports in transformers itself, where it and torch are installed."""

import numpy as np
import pytest
from checkpoint_models import assert_same_weights, make, tokenizer
from small_bert import encoder_features

from keras_bert_ref import load_pretrained

torch = pytest.importorskip("torch", reason="pip install torch transformers")
transformers = pytest.importorskip("transformers", reason="pip install torch transformers")

pytestmark = pytest.mark.transformers

# The class that loads each kind; its outputs under our names.
CLASSES = {
    "encoder": (
        "BertModel",
        {"sequence_output": "last_hidden_state", "pooled_output": "pooler_output"},
    ),
    "left to right": ("BertModel", {"sequence_output": "last_hidden_state"}),
    "pretrainer": (
        "BertForPreTraining",
        {
            "masked_lm_logits": "prediction_logits",
            "next_sentence_logits": "seq_relationship_logits",
        },
    ),
    "masked_lm": ("BertForMaskedLM", {"masked_lm_logits": "logits"}),
    "classifier": ("BertForSequenceClassification", {"logits": "logits"}),
    "regression": ("BertForSequenceClassification", {"scores": "logits"}),
    "span": (
        "BertForQuestionAnswering",
        {"start_logits": "start_logits", "end_logits": "end_logits"},
    ),
    "choice": ("BertForMultipleChoice", {"logits": "logits"}),
    "tagger": ("BertForTokenClassification", {"logits": "logits"}),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_transformers_loads_it_without_a_word_and_computes_the_same(kind, tmp_path, caplog):
    model = make(kind)
    model.save_pretrained(tmp_path, format="hf")
    name, outputs = CLASSES[kind]
    logger = transformers.utils.logging.get_logger("transformers")
    logger.addHandler(caplog.handler)
    transformers.utils.logging.set_verbosity_warning()
    try:
        theirs, info = getattr(transformers, name).from_pretrained(
            tmp_path, output_loading_info=True
        )
    finally:
        logger.removeHandler(caplog.handler)
    assert [record.getMessage() for record in caplog.records] == []
    assert not any(info.values())
    theirs.eval()

    features = encoder_features()
    if kind == "choice":
        features = {key: values[:12].reshape(4, 3, 7) for key, values in features.items()}
    ids, mask, segments = (torch.tensor(values.astype(np.int64)) for values in features.values())
    with torch.no_grad():
        given = theirs(input_ids=ids, attention_mask=mask, token_type_ids=segments)
    if kind in ("pretrainer", "masked_lm"):
        features["masked_lm_positions"] = np.tile(np.arange(7, dtype=np.int32), (13, 1))
    expected = model(features)
    for ours, their_name in outputs.items():
        found = expected[ours].numpy()
        other = given[their_name].numpy().reshape(found.shape)
        real = np.ones(found.shape[:1], bool)
        if found.ndim > 1 and found.shape[1] == 7:
            real = features["input_mask"] == 1
        np.testing.assert_allclose(found[real], other[real], rtol=0, atol=2e-5, err_msg=ours)
    if getattr(model, "labels", None):
        assert tuple(theirs.config.id2label[n] for n in range(len(model.labels))) == model.labels


@pytest.mark.parametrize("lower_case", [True, False])
def test_the_tokenizer_is_read_as_well(lower_case, tmp_path):
    model = make("encoder")
    model.tokenizer = tokenizer(lower_case=lower_case)
    model.save_pretrained(tmp_path, format="hf")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("abc word7, z", "Abc É é"):
        assert theirs(text)["input_ids"] == model.tokenizer.encode(text).input_ids


@pytest.mark.parametrize("kind", CLASSES)
def test_what_transformers_saves_comes_back(kind, tmp_path):
    model = make(kind)
    model.save_pretrained(tmp_path / "a", format="hf")
    theirs = getattr(transformers, CLASSES[kind][0]).from_pretrained(tmp_path / "a")
    theirs.save_pretrained(tmp_path / "b")
    transformers.AutoTokenizer.from_pretrained(tmp_path / "a").save_pretrained(tmp_path / "b")
    loaded = load_pretrained(tmp_path / "b", strict=kind in ("encoder", "pretrainer"))
    assert type(loaded) is type(model)
    assert_same_weights(loaded, model)
    assert loaded.tokenizer.vocabulary == model.tokenizer.vocabulary
