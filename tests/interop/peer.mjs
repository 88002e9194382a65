// A peer of a swarm: `node peer.mjs OPTIONS`, a JSON object as below. It writes a JSON line for whatever happens.
//
//   address   multiaddress of the member to dial, with /p2p/
//   secret    seed of its key, hexadecimal
//   manifest  digest of the swarm's manifest, hexadecimal; it takes part in the open swarm of that
//   publish   rollouts to sign and send in one message: the fields of tests/swarm/wire/vectors/rollouts.json, without author
//   announce  rollouts to announce only, so that they are pulled
//
// It ends with its standard input.

import './polyfill.mjs'
import { generateKeyPairFromSeed } from '@libp2p/crypto/keys'
import { gossipsub } from '@libp2p/gossipsub'
import { identify } from '@libp2p/identify'
import { noise } from '@libp2p/noise'
import { peerIdFromString } from '@libp2p/peer-id'
import { tcp } from '@libp2p/tcp'
import { byteStream } from '@libp2p/utils'
import { yamux } from '@libp2p/yamux'
import { multiaddr } from '@multiformats/multiaddr'
import { createLibp2p } from 'libp2p'
import * as wire from './wire.mjs'
import { bytesOf, hex } from './wire.mjs'

const PULL = '/sapo-edge/pull/1.0.0'
const SENDERS_FAULT = new Set(['size', 'shape', 'signature', 'swarm'])
const options = JSON.parse(process.argv[2])
const swarm = bytesOf(options.manifest)
const topic = wire.topicOf(swarm)
const privateKey = await generateKeyPairFromSeed('Ed25519', bytesOf(options.secret))
const publicKey = privateKey.publicKey.raw
const seen = new Set()
const own = new Map()

const say = (line) => process.stdout.write(`${JSON.stringify(line)}\n`)

// What GossipSub itself says the id of a message is. The default of js-libp2p puts the key in place of the peer id, so
// that others don't know what they have by the id under which it is announced.
function messageId (message) {
  const sequence = Buffer.alloc(8)
  sequence.writeBigUInt64BE(message.sequenceNumber)
  return Buffer.concat([message.from.toMultihash().bytes, sequence])
}

const node = await createLibp2p({
  privateKey,
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  services: { identify: identify(), pubsub: gossipsub({ msgIdFn: messageId }) }
})
const pubsub = node.services.pubsub

// Says what became of a record: its rollout, or why it is refused.
function admit (record, from, way) {
  const digest = hex(wire.digestOf(record))
  if (seen.has(digest)) return 'duplicate'
  const found = wire.decodeRecord(record)
  if (!wire.verified(record)) return 'signature'
  if (!found.swarm.equals(swarm)) return 'swarm'
  seen.add(digest)
  say({ rollout: found.rollout, digest, verified: true, from, way })
  return null
}

function take (records, from, way) {
  const refused = []
  for (const record of records) {
    try {
      const reason = admit(record, from, way)
      if (reason !== null) refused.push(reason)
    } catch (error) {
      if (!(error instanceof wire.WireError)) throw error
      refused.push(error.reason)
    }
  }
  const bad = refused.filter((reason) => reason !== 'duplicate')
  if (bad.length > 0) say({ refused: bad, from, way })
  return refused
}

async function ask (peerId, request) {
  const stream = await node.dialProtocol(peerId, PULL, { signal: AbortSignal.timeout(10_000) })
  try {
    const bytes = byteStream(stream)
    await bytes.write(wire.frame(wire.encodeRequest(request)))
    return wire.decodeResponse(await readFrame(bytes, wire.MAX_RESPONSE_BYTES))
  } finally {
    await stream.close()
  }
}

async function readFrame (bytes, limit) {
  const signal = AbortSignal.timeout(10_000)
  const length = Buffer.from((await bytes.read({ bytes: 4, signal })).subarray()).readUInt32BE()
  if (length > limit) throw new wire.WireError('size', 'a frame that is too large')
  return Buffer.from((await bytes.read({ bytes: length, signal })).subarray())
}

await node.handle(PULL, async (stream) => {
  try {
    const bytes = byteStream(stream)
    const request = wire.decodeRequest(await readFrame(bytes, wire.MAX_REQUEST_BYTES))
    say({ asked: request.kind })
    await bytes.write(wire.frame(answerTo(request)))
    await stream.close()
  } catch (error) {
    stream.abort(error)
  }
})

function answerTo (request) {
  if (request.kind === 'manifest') return wire.encodeManifestResponse(null)
  if (request.kind === 'questions') return wire.encodePieceResponse(null)
  // What is announced later is nobody's to ask for yet.
  if (request.kind === 'recent') return wire.encodeResponse([])
  return wire.encodeResponse(request.digests.map((digest) => own.get(hex(digest))).filter((record) => record !== undefined))
}

pubsub.topicValidators.set(topic, (peerId, message) => {
  const from = peerId.toString()
  try {
    const { swarm: named, records, announced } = wire.decodeMessage(Buffer.from(message.data))
    if (!named.equals(swarm)) return 'reject'
    const refused = take(records, from, 'gossip')
    const wanted = announced.filter((digest) => !seen.has(hex(digest)))
    if (wanted.length > 0) {
      ask(peerId, { kind: 'rollouts', digests: wanted.slice(0, wire.MAX_REQUESTED) })
        .then(({ records }) => take(records, from, 'pull'))
        .catch((error) => say({ error: error.message }))
    }
    if (refused.length === 0) return 'accept'
    return refused.some((reason) => SENDERS_FAULT.has(reason)) ? 'reject' : 'ignore'
  } catch (error) {
    say({ refused: [error.reason ?? error.message], from, way: 'gossip' })
    return SENDERS_FAULT.has(error.reason) ? 'reject' : 'ignore'
  }
})

async function signed (fields) {
  const body = wire.encodeBody(fields, swarm, publicKey)
  const record = { body, signature: Buffer.from(await privateKey.sign(wire.signedBytes(body))) }
  own.set(hex(wire.digestOf(record)), record)
  seen.add(hex(wire.digestOf(record)))
  return record
}

async function until (condition) {
  while (!condition()) await new Promise((resolve) => setTimeout(resolve, 50))
}

process.stdin.resume()
process.stdin.on('end', () => process.exit(0))

say({ peer_id: node.peerId.toString(), addresses: node.getMultiaddrs().map(String) })
const address = multiaddr(options.address)
await node.dial(address)
const member = peerIdFromString(options.address.split('/p2p/').at(-1))
const { manifest } = await ask(member, { kind: 'manifest', digests: [swarm] })
say({ manifest: manifest === null ? null : hex(wire.sha256(manifest)) })
take((await ask(member, { kind: 'recent', swarm, count: 32 })).records, member.toString(), 'recent')
// GossipSub sends newcomers what passed lately: only now, so that the answer before is not all known already.
pubsub.subscribe(topic)
// In the member's mesh, so that what is sent is passed on at once and not lost.
await until(() => pubsub.getMeshPeers(topic).length > 0)
say({ joined: topic })
const published = await Promise.all(options.publish.map(signed))
const announced = (await Promise.all(options.announce.map(signed))).map(wire.digestOf)
if (published.length + announced.length > 0) {
  await pubsub.publish(topic, wire.encodeMessage(swarm, published, announced))
  say({ published: published.map((record) => hex(wire.digestOf(record))), announced: announced.map(hex) })
}
