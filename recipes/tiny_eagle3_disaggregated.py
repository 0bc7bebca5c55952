"""tiny_eagle3.py with the target in a process of its own: only the topology differs. Under two minutes on a laptop."""

from specforge.dsl import (
    Capture,
    Checkpoint,
    Disaggregated,
    Draft,
    Eagle3,
    Evaluate,
    Export,
    Prompts,
    Recipe,
    SharedDir,
    Target,
    Train,
    Transformers,
)

target = Target("tiny-llama", config="targets/tiny-llama.json", random_weights=True)
prompts = Prompts("data/tiny_prompts.jsonl", max_length=64)
heldout = Prompts("data/tiny_heldout.jsonl", max_length=64)

recipe = Recipe(
    name="tiny-eagle3-disaggregated",
    train=Train(
        Capture(prompts, target),
        Eagle3(ttt_length=4),
        draft=Draft(vocab_size=128),
        learning_rate=3e-3,
        batch_size=4,
        epochs=5,
        log_every=5,
    ),
    topology=Disaggregated(servers=[Transformers()], store=SharedDir()),
    evaluate=[Evaluate(heldout, every=40)],
    outputs=[Checkpoint(every=40, keep=2), Export("sglang"), Export("hf")],
)
