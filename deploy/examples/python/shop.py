#!/usr/bin/env python3
"""A shop in Python on Lapse. Needs pika; ../README.md explains each step.

  shop.py place           place orders: one JSON object a line on standard input
  shop.py expired         print the orders that expire, until it is stopped
  shop.py refused         print the orders that could not be placed, until it is stopped
  shop.py remind ID RUNG  set a reminder of an order, due after a rung's delay, such as 30m
  shop.py reminders       print the reminders that are due, until it is stopped

A lost connection is opened again. Anything else ends the program with status 1 and says why: have a
supervisor (systemd, Kubernetes) start it again; what was not acknowledged comes again."""
import json, os, socket, sys, time, uuid

import pika
from pika.exceptions import AMQPChannelError, AMQPConnectionError, NackError, UnroutableError

URL = os.environ.get("LAPSE_AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/")
LAPSE = os.environ.get("LAPSE_NAMESPACE", "lapse")
SHOP = os.environ.get("SHOP", "shop-python")  # begins the names of the shop's own queues
REMINDER = "order.pickup_reminder"


def connected(work):
    """Calls work with a channel until it returns: after a lost connection again, with another."""
    pause = 1
    while True:
        try:
            parameters = pika.URLParameters(URL)
            parameters.heartbeat, parameters.blocked_connection_timeout = 30, 60  # seconds
            with pika.BlockingConnection(parameters) as connection:
                pause = 1
                return work(connection.channel())
        except (AMQPConnectionError, socket.gaierror) as lost:
            print(f"shop.py: no connection, trying again in {pause} s: {lost!r}", file=sys.stderr)
            time.sleep(pause)
            pause = min(2 * pause, 30)


def send(exchange, kind, bodies):
    """Returns when the broker has stored the messages. That no queue takes one is an error."""
    # The id is the message's however often it is sent, so sending it again does nothing twice.
    messages = [(str(uuid.uuid4()), body) for body in bodies]

    def work(channel):
        channel.queue_declare(f"{LAPSE}.due.{kind}", passive=True)  # or else nobody would handle them
        channel.confirm_delivery()
        while messages:
            message_id, body = messages[0]
            channel.basic_publish(exchange, kind, json.dumps(body), pika.BasicProperties(
                message_id=message_id, content_type="application/json", delivery_mode=2,  # persistent
                timestamp=int(time.time()), app_id=SHOP), mandatory=True)
            print("accepted", body.get("id") or body.get("order_id"), flush=True)
            del messages[0]

    connected(work)


def place():
    send(f"{LAPSE}.due", "order.place", [json.loads(line) for line in sys.stdin if line.strip()])


def remind(order_id, rung):
    send(f"{LAPSE}.delay.{rung}", REMINDER, [{"order_id": order_id}])


def consume(channel, queue, handle):
    """Has each message handled, and acknowledges it then. What makes no sense is a dead letter."""
    channel.basic_qos(prefetch_count=100)
    for delivery, _, body in channel.consume(queue):
        try:
            handle(json.loads(body))
        except (ValueError, KeyError, TypeError) as senseless:
            print(f"shop.py: a dead letter: {senseless!r}: {body!r}", file=sys.stderr)
            channel.basic_reject(delivery.delivery_tag, requeue=False)
        else:
            channel.basic_ack(delivery.delivery_tag)
    raise RuntimeError(f"the broker cancelled the consumer of {queue}: was it deleted?")


def follow(event_type):
    queue, dead = f"{SHOP}.{event_type}", f"{SHOP}.dead"

    def handle(event):
        # A shop does its work here, in one transaction with a note of event["id"] under a unique key: an
        # event may come more than once.
        data = event["data"]
        print(event["type"], data["order_id"], data.get("reason", ""), flush=True)

    def work(channel):
        channel.queue_declare(dead, durable=True, arguments={"x-queue-type": "quorum"})
        channel.queue_declare(queue, durable=True, arguments={
            "x-queue-type": "quorum", "x-delivery-limit": 20, "x-overflow": "reject-publish",
            "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead, "x-dead-letter-strategy": "at-least-once"})
        channel.queue_bind(queue, f"{LAPSE}.events", event_type)
        consume(channel, queue, handle)

    connected(work)


def reminders():
    connected(lambda channel: consume(
        channel, f"{LAPSE}.due.{REMINDER}", lambda reminder: print("remind", reminder["order_id"], flush=True)))


def main(name="", *arguments):
    commands = {
        ("place", 0): place, ("remind", 2): remind, ("reminders", 0): reminders,
        ("expired", 0): lambda: follow("order.expired"), ("refused", 0): lambda: follow("order.refused")}
    if (name, len(arguments)) not in commands:
        sys.exit(__doc__)
    try:
        commands[name, len(arguments)](*arguments)
    except (AMQPChannelError, UnroutableError, NackError, RuntimeError, ValueError) as error:
        sys.exit(f"shop.py: {error!r}")


if __name__ == "__main__":
    main(*sys.argv[1:])
