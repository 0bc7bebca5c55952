from specforge.dsl import Capture, Disaggregated, Eagle3, Recipe, Recorded, SharedDir, Target, Train, Transformers

target = Target("tiny-llama", config="../../recipes/targets/tiny-llama.json", random_weights=True)
recipe = Recipe(name="bad", train=Train(Capture(Recorded("recordings/tiny"), target), Eagle3(ttt_length=4)), topology=Disaggregated([Transformers()], SharedDir()))
