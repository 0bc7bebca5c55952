from specforge.dsl import Capture, Disaggregated, Eagle3, Prompts, Recipe, SharedDir, Target, Train, Transformers

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
recipe = Recipe(
    name="bad",
    train=Train(Capture(prompts, target), Eagle3(ttt_length=4), pack_tokens=256),
    topology=Disaggregated(servers=[Transformers()], store=SharedDir(max_gib=0.0001)),
)
