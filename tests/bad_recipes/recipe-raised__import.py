from specforge.dsl import Tarket

target = Target("tiny", config="../../recipes/targets/tiny-llama.json", random_weights=True)
