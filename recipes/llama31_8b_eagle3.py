"""EAGLE3 for Llama-3.1-8B-Instruct on one H200: target and draft in one process. The chats stand in for yours."""

from specforge.dsl import (
    Capture,
    Checkpoint,
    Colocated,
    Conversations,
    Draft,
    Eagle3,
    Export,
    Recipe,
    Target,
    Train,
    Transformers,
)

target = Target("meta-llama/Llama-3.1-8B-Instruct")
chats = Conversations("data/smollm2_chats.jsonl", max_length=4096)  # your own chats

recipe = Recipe(
    name="llama31-8b-eagle3",
    train=Train(
        Capture(chats, target),
        Eagle3(ttt_length=7),
        draft=Draft(vocab_size=32000),
        learning_rate=1e-4,
        batch_size=1,
        precision="bfloat16",
    ),
    topology=Colocated(device="H200", engine=Transformers(dtype="bfloat16")),
    outputs=[Checkpoint(every=1000, keep=2), Export("sglang")],
)
