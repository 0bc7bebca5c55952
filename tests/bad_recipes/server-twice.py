from specforge.dsl import Capture, Disaggregated, Eagle3, Mooncake, Prompts, Recipe, SGLang, Target, Train

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
prompts = Prompts("../../recipes/data/tiny_prompts.jsonl", max_length=64)
servers = [SGLang(url="http://10.0.0.7:30000"), SGLang(url="http://10.0.0.7:30000/")]
recipe = Recipe(
    name="bad",
    train=Train(Capture(prompts, target), Eagle3(ttt_length=4)),
    topology=Disaggregated(servers=servers, store=Mooncake(), device="H200"),
)
