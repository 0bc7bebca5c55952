from specforge.dsl import Capture, Eagle3, Mix, Prompts, Recipe, Target, Train

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
recipe = Recipe(
    name="bad",
    train=Train(
        Capture(Mix([prompts, prompts], weights=[1, 0]), target),
        Eagle3(ttt_length=4),
    ),
)
