from specforge.dsl import Capture, Conversations, Eagle3, Recipe, Target, Train

target = Target("tiny", config="../../recipes/targets/tiny-llama.json")
chats = Conversations(
    "../../recipes/data/smollm2_heldout.jsonl",
    max_length=64,
    reply_header="<|im_start|>assistant\n",
    reply_end="",
)
recipe = Recipe(
    name="bad",
    train=Train(Capture(chats, target), Eagle3(ttt_length=4)),
)
