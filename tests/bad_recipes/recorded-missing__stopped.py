from specforge.dsl import Capture, Eagle3, Recipe, Recorded, Target, Train

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
recipe = Recipe(name="bad", train=Train(Capture(Recorded("recordings/stopped"), target), Eagle3(ttt_length=4)))
