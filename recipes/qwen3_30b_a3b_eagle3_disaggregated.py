"""EAGLE3 for Qwen3-30B-A3B on four H200: SGLang captures on two, two train. The chats stand in for yours."""

from specforge.dsl import (
    Capture,
    Checkpoint,
    Conversations,
    Disaggregated,
    Draft,
    Eagle3,
    Export,
    Mooncake,
    Recipe,
    SGLang,
    Target,
    Train,
    Trainers,
)

target = Target("Qwen/Qwen3-30B-A3B")
chats = Conversations("data/smollm2_chats.jsonl", max_length=4096)  # your own chats

recipe = Recipe(
    name="qwen3-30b-a3b-eagle3-disaggregated",
    train=Train(
        Capture(chats, target),
        Eagle3(ttt_length=7),
        draft=Draft(vocab_size=32000),
        learning_rate=1e-4,
        batch_size=1,
        precision="bfloat16",
    ),
    topology=Disaggregated(
        servers=[SGLang(gpus=[0, 1])], store=Mooncake(), trainers=Trainers(gpus=[2, 3]), device="H200"
    ),
    outputs=[Checkpoint(every=1000, keep=2), Export("sglang")],
)
