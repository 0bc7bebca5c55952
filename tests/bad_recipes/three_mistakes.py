from specforge.dsl import Capture, Checkpoint, Draft, Eagle3, Policy, Prompts, Recipe, Target, Train

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_promts.jsonl", max_length=64)
recipe = Recipe(
    name="bad",
    train=Train(
        Capture(prompts, target, Policy(layers=[1, 4, 8])),
        Eagle3(ttt_length=4),
        draft=Draft(vocab_size=128),
        learning_rate=3e-3,
        batch_size=0,
    ),
    outputs=[Checkpoint(every=40)],
)
