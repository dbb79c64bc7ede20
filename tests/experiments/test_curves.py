import json

from experiments.curves import draw


def test_a_run_becomes_a_picture(tmp_path):
    metrics = {"masked_lm_loss": 6.0, "masked_lm_accuracy": 0.1, "next_sentence_accuracy": 0.5}
    lines = [
        {"step": step, "split": split, **metrics}
        for step in (10, 20)
        for split in ("train", "heldout")
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    draw(tmp_path, tmp_path / "curves.png", baseline=metrics)
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
