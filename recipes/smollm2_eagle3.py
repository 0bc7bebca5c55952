"""EAGLE3 for a real model on a CPU: SmolLM2-135M-Instruct and chats it wrote itself. Minutes on two cores."""

from specforge.dsl import Capture, Checkpoint, Conversations, Draft, Eagle3, Export, Recipe, Target, Train

target = Target("HuggingFaceTB/SmolLM2-135M-Instruct")
chats = Conversations("data/smollm2_chats.jsonl", max_length=1024, max_rows=90)

recipe = Recipe(
    name="smollm2-eagle3",
    train=Train(
        Capture(chats, target),
        Eagle3(ttt_length=7),
        draft=Draft(vocab_size=8192),
        learning_rate=2e-3,
        batch_size=1,
        log_every=10,
    ),
    outputs=[Checkpoint(keep=2), Export("sglang")],
)
