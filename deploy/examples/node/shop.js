#!/usr/bin/env node
// A shop in Node on Lapse. Needs amqplib (npm ci); ../README.md explains each step.
const usage = `usage:
  shop.js place           place orders: one JSON object a line on standard input
  shop.js expired         print the orders that expire, until it is stopped
  shop.js refused         print the orders that could not be placed, until it is stopped
  shop.js remind ID RUNG  set a reminder of an order, due after a rung's delay, such as 30m
  shop.js reminders       print the reminders that are due, until it is stopped

A lost connection is opened again. Anything else ends the program with status 1 and says why: have a
supervisor (systemd, Kubernetes) start it again; what was not acknowledged comes again.`

import { randomUUID } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import amqp from 'amqplib'

const url = process.env.LAPSE_AMQP_URL ?? 'amqp://guest:guest@127.0.0.1:5672/'
const lapse = process.env.LAPSE_NAMESPACE ?? 'lapse'
const shop = process.env.SHOP ?? 'shop-node' // begins the names of the shop's own queues
const reminder = 'order.pickup_reminder'

// connected calls work with a channel until it is done: after a lost connection again, with another.
async function connected(work) {
  for (let pause = 1; ; pause = Math.min(2 * pause, 30)) {
    let connection, lost = false
    try {
      connection = await amqp.connect(url, { timeout: 10_000 })
      const failure = new Promise((_, reject) => {
        connection.on('error', reject)
        connection.on('close', () => { lost = true; reject(new Error('closed')) })
        connection.on('blocked', reason => console.error(`shop.js: the broker accepts no messages at present: ${reason}`))
      })
      failure.catch(() => {}) // who waits for it sees it
      const channel = await connection.createConfirmChannel()
      pause = 1
      const refused = new Promise((_, reject) => channel.on('error', reject))
      return await Promise.race([refused, failure, work(channel)])
    } catch (error) {
      if (connection && !lost) throw error
      console.error(`shop.js: no connection, trying again in ${pause} s: ${error.message || error.code}`)
    } finally {
      if (!lost) await connection?.close().catch(() => {})
    }
    await sleep(1000 * pause)
  }
}

// send is done when the broker has stored the messages. That no queue takes one is an error.
async function send(exchange, kind, bodies) {
  // The id is the message's however often it is sent, so sending it again does nothing twice.
  const messages = bodies.map(body => ({ id: randomUUID(), body }))
  await connected(async channel => {
    await channel.checkQueue(`${lapse}.due.${kind}`) // or else nobody would handle them
    const returned = new Map() // by the message's id; a return comes before the confirm
    channel.on('return', ({ properties, fields }) => returned.set(properties.messageId, fields.replyText))
    const publish = ({ id, body }) => new Promise((resolve, reject) => {
      const options = { messageId: id, contentType: 'application/json', persistent: true, mandatory: true, timestamp: Math.floor(Date.now() / 1000), appId: shop }
      channel.publish(exchange, kind, Buffer.from(JSON.stringify(body)), options, refused => {
        if (refused) reject(refused)
        else if (returned.has(id)) reject(new Error(`unroutable: no queue took ${kind} at ${exchange}: ${returned.get(id)}`))
        else resolve()
      })
    })
    while (messages.length > 0) { // so many at a time
      await Promise.all(messages.slice(0, 200).map(publish))
      for (const { body } of messages.splice(0, 200)) console.log('accepted', body.id ?? body.order_id)
    }
  })
}

const place = async () => send(`${lapse}.due`, 'order.place', readFileSync(0, 'utf8').split('\n').filter(line => line.trim()).map(line => JSON.parse(line)))

const remind = (orderId, rung) => send(`${lapse}.delay.${rung}`, reminder, [{ order_id: orderId }])

// consume has each message handled, and acknowledges it then. What makes no sense is a dead letter.
const consume = (channel, queue, handle) => new Promise((_, reject) => {
  channel.prefetch(100)
  channel.consume(queue, delivery => {
    if (!delivery) return reject(new Error(`the broker cancelled the consumer of ${queue}: was it deleted?`))
    try {
      handle(JSON.parse(delivery.content))
    } catch (senseless) {
      console.error(`shop.js: a dead letter: ${senseless.message}: ${delivery.content}`)
      return channel.reject(delivery, false)
    }
    channel.ack(delivery)
  }).catch(reject)
})

const follow = type => connected(async channel => {
  const queue = `${shop}.${type}`, dead = `${shop}.dead`
  await channel.assertQueue(dead, { arguments: { 'x-queue-type': 'quorum' } })
  await channel.assertQueue(queue, { deadLetterExchange: '', deadLetterRoutingKey: dead, arguments: {
    'x-queue-type': 'quorum', 'x-delivery-limit': 20, 'x-overflow': 'reject-publish', 'x-dead-letter-strategy': 'at-least-once' } })
  await channel.bindQueue(queue, `${lapse}.events`, type)
  // A shop does its work in the function, in one transaction with a note of the event's id under a unique key: an
  // event may come more than once.
  await consume(channel, queue, ({ type, data }) => console.log(type, data.order_id, data.reason ?? ''))
})

const reminders = () => connected(channel => consume(channel, `${lapse}.due.${reminder}`, ({ order_id }) => console.log('remind', order_id)))

const commands = { place, expired: () => follow('order.expired'), refused: () => follow('order.refused'), remind, reminders }
const [name, ...args] = process.argv.slice(2)
if (!Object.hasOwn(commands, name ?? '') || args.length !== (name === 'remind' ? 2 : 0)) {
  console.error(usage)
  process.exit(1)
}
commands[name](...args).catch(error => { console.error(`shop.js: ${error.message}`); process.exit(1) })
