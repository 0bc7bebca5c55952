"""EAGLE3 for DeepSeek-V3 in bfloat16 on one host of 20 H200: SGLang captures on 16, four train."""

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

target = Target("deepseek-ai/DeepSeek-V3")
chats = Conversations("data/smollm2_chats.jsonl", max_length=4096)  # your own chats

recipe = Recipe(
    name="deepseek-v3-eagle3-disaggregated",
    train=Train(
        Capture(chats, target),
        Eagle3(ttt_length=7),
        draft=Draft(vocab_size=32000),
        learning_rate=1e-4,
        batch_size=1,
        precision="bfloat16",
    ),
    topology=Disaggregated(
        servers=[SGLang(gpus=list(range(16)))],
        store=Mooncake(),
        trainers=Trainers(gpus=[16, 17, 18, 19]),
        device="H200",
    ),
    outputs=[Checkpoint(every=1000, keep=2), Export("sglang")],
)
