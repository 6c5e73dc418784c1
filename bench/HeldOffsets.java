import java.io.FileInputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;

import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Copies numbers into each partition of a topic, one per transaction, with the number as a group's offset. The offset
 * goes first; while a file `hold` exists in the folder, the transaction goes no further. Every third one is aborted, and
 * done again. Ends when a file `stop` exists. Any error of a client ends the program.
 *
 * Arguments: a file of client settings, the topic, its partitions, the group, the transactional id, the folder.
 */
public final class HeldOffsets {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(arguments[0])) {
            settings.load(file);
        }
        String topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]);
        ConsumerGroupMetadata group = new ConsumerGroupMetadata(arguments[3]);
        settings.put("transactional.id", arguments[4]);
        Path hold = Path.of(arguments[5], "hold"), stop = Path.of(arguments[5], "stop");
        var bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings, bytes, bytes)) {
            producer.initTransactions();
            int done = 0;
            for (int attempt = 1; !Files.exists(stop); attempt++) {
                producer.beginTransaction();
                var offset = new OffsetAndMetadata(done + 1);
                producer.sendOffsetsToTransaction(Map.of(new TopicPartition(topic, 0), offset), group);
                if (Files.exists(hold)) {
                    System.out.println("holding");
                }
                while (Files.exists(hold) && !Files.exists(stop)) {
                    Thread.sleep(50);
                }
                for (int partition = 0; partition < partitions; partition++) {
                    byte[] value = Integer.toString(done).getBytes();
                    producer.send(new ProducerRecord<>(topic, partition, null, value));
                }
                if (attempt % 3 == 0) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                    done++;
                    System.out.println("done " + done);
                }
            }
        }
    }
}
