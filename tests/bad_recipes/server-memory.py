from specforge.dsl import Capture, Conversations, Disaggregated, Eagle3, Mooncake, Recipe, SGLang, Target, Train

target = Target("meta-llama/Llama-3.1-8B-Instruct")
chats = Conversations("../../recipes/data/smollm2_chats.jsonl", max_length=2048)
servers = [SGLang(mem_fraction=0.1)]
recipe = Recipe(
    name="bad",
    train=Train(Capture(chats, target), Eagle3()),
    topology=Disaggregated(servers=servers, store=Mooncake(), device="H200"),
)
