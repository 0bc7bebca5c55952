"""EAGLE3 for Qwen3-30B-A3B, experts on every layer, on one H200. The chats stand in for yours."""

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

target = Target("Qwen/Qwen3-30B-A3B")
chats = Conversations("data/smollm2_chats.jsonl", max_length=4096)  # your own chats

recipe = Recipe(
    name="qwen3-30b-a3b-eagle3",
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
