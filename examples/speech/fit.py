"""The same model, trained by `model.fit`; it goes on from the newest checkpoint, whichever of the two wrote it."""

import keras
import trainer_client

import recogniser

keras.utils.set_random_seed(7)
train = trainer_client.connect("tcp://127.0.0.1:7400", stream="train")
dev = trainer_client.connect("tcp://127.0.0.1:7400", stream="dev")

model = recogniser.model()
model.compile(recogniser.optimizer(), recogniser.loss)
judge = trainer_client.Validation(dev, epochs=1, metrics=recogniser.eval_metrics(), **recogniser.feed_keys)
checkpoint = trainer_client.FeedCheckpoint(train, "checkpoints", until=trainer_client.Until(epochs=12))
model.fit(train.dataset(**recogniser.feed_keys), epochs=checkpoint.epochs, callbacks=[judge, checkpoint], verbose=0)
