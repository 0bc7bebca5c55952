"""EAGLE3 for DeepSeek-V3 on one H200, which its plan says cannot hold it: see the disaggregated recipe."""

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

target = Target("deepseek-ai/DeepSeek-V3")
chats = Conversations("data/smollm2_chats.jsonl", max_length=4096)  # your own chats

recipe = Recipe(
    name="deepseek-v3-eagle3",
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
