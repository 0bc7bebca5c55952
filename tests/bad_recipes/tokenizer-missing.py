from specforge.dsl import Capture, Conversations, Eagle3, Recipe, Target, Train

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Conversations("../../recipes/data/smollm2_heldout.jsonl", max_length=64)
recipe = Recipe(
    name="bad",
    train=Train(Capture(prompts, target), Eagle3(ttt_length=4)),
)
